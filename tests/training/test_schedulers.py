"""Learning-rate schedulers drive the wrapped optimizer."""

import pytest
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from tests.training.small_training import (
    HYBRID,
    STATIC,
    Net,
    Twin,
    adam,
    assert_same,
    batches,
    measure,
    multipliers,
    static,
    train,
    train_twin,
    wrapped,
    wrapped_static,
)

# Schedulers


def sequential(optimizer):
    first = lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=2)
    second = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[2])


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: k / 6),
    "SequentialLR": sequential,
    "SWALR": lambda o: SWALR(o, swa_lr=0.001, anneal_epochs=3),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own, before 2.6
@pytest.mark.parametrize("place", ["wrapper", "base"])
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_drive_the_base_without_warnings(make, place):
    ours, theirs = Net(), Net()
    optimizer, plain = wrapped(ours), adam(theirs)
    schedulers = make(optimizer if place == "wrapper" else optimizer.base), make(plain)
    twin, rates = Twin(HYBRID, 0.7), []
    for _ in range(6):
        train(ours, optimizer, epochs=1)
        train_twin(theirs, plain, twin, epochs=1)
        for scheduler in schedulers:
            scheduler.step(*([1.0] if "Plateau" in type(scheduler).__name__ else []))
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert optimizer.param_groups[0]["betas"] == plain.param_groups[0]["betas"]
    assert len(set(rates)) > 1
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


@pytest.mark.parametrize("loss", ["a loss", "a sum of parameters", "no loss"])
def test_a_warmup_from_zero_still_puts_the_constraint_gradient_into_the_moments(loss):
    """The first step has lr 0 and an empty state, as torch's own state-making step has."""
    model, reference = Net(), Net()
    optimizer = wrapped_static(model)
    lr_scheduler.LambdaLR(optimizer, lambda k: k / 4)
    assert optimizer.param_groups[0]["lr"] == 0
    terms = {
        "a loss": lambda net: measure(net, *batches()[0])[0],
        "a sum of parameters": lambda net: sum(p.sum() for p in net.parameters()),
        "no loss": lambda net: 0 * net.first.weight.sum(),
    }
    optimizer.zero_grad()
    if loss != "no loss":
        terms[loss](model).backward()
    optimizer.step()
    (terms[loss](reference) + Twin(STATIC, 0.7).value(static(reference))).backward()
    moments = optimizer.state[model.first.weight]
    assert_same(moments["exp_avg"], 0.1 * reference.first.weight.grad)
    assert optimizer.epoch.steps == 1
    assert_same(model, Net())
