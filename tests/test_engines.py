"""Engines that take a wrapped optimizer, and models that are more than a stack of layers."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.fabric import Fabric
from test_injection import (
    F64,
    HYBRID,
    STATIC,
    Net,
    Twin,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
    static,
    train,
    train_twin,
)
from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrizations import weight_norm

from torch_powalm import ConstraintRegistry, PowerALMOptimizer


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def adam(model: nn.Module) -> optim.Adam:
    return optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)


def wrapped(model: Net, **settings: Any) -> PowerALMOptimizer:
    return constrained(adam(model), registry(model), **{"nu": 0.7, **settings})


def float32_batches() -> list[tuple[Tensor, Tensor]]:
    return [(x.float(), target) for x, target in batches()]


# accelerate


@pytest.fixture
def accelerate() -> Iterator[Callable[..., Accelerator]]:
    """Builds accelerators; their state is global and is taken down afterwards."""
    yield lambda **settings: Accelerator(cpu=True, **settings)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def accelerated_epoch(accelerator: Accelerator, model: Any, prepared: Any) -> None:
    """One epoch; augment() belongs to the optimizer that accelerate has wrapped."""
    optimizer = prepared.optimizer
    for x, target in batches():
        prepared.zero_grad()
        loss, values = measure(model, x, target)
        accelerator.backward(optimizer.augment(loss, **values))
        prepared.step()
    optimizer.update_multipliers()


def test_accelerate_trains_as_the_full_lagrangian(accelerate):
    ours, theirs = Net(), Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(ours, wrapped(ours))
    assert isinstance(prepared.optimizer, PowerALMOptimizer)
    for _ in range(3):
        accelerated_epoch(accelerator, model, prepared)
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(prepared.optimizer), twin.y)


@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_accelerate_accumulates_and_clips_as_a_plain_loop(accelerate, total):
    ours, theirs = Net(), Net()
    accelerator = accelerate(gradient_accumulation_steps=3)
    optimizer = wrapped(ours)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model, prepared, scheduler = accelerator.prepare(ours, optimizer, scheduler)
    for _ in range(2):
        for x, target in batches():
            with accelerator.accumulate(model):
                loss, values = measure(model, x, target)
                accelerator.backward(optimizer.augment(loss, **values))
                if accelerator.sync_gradients:
                    if total:
                        optimizer.backward_constraints()
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                prepared.step()
                scheduler.step()
                prepared.zero_grad()
        optimizer.update_multipliers()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)

    plain = wrapped(theirs)
    for _ in range(2):
        for x, target in batches():
            loss, values = measure(theirs, x, target)
            (plain.augment(loss, **values) / 3).backward()
        if total:
            plain.backward_constraints()
        clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
        plain.param_groups[0]["lr"] *= 0.5
        plain.zero_grad()
        plain.update_multipliers()
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), multipliers(plain))


def test_accelerate_saves_and_loads_the_multipliers(accelerate, tmp_path):
    straight = Net()
    reference = wrapped(straight)
    train(straight, reference, epochs=4)

    first = Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(first, wrapped(first))
    for _ in range(2):
        accelerated_epoch(accelerator, model, prepared)
    accelerator.save_state(str(tmp_path))

    second = Net()
    accelerator = accelerate()
    model, prepared = accelerator.prepare(second, wrapped(second))
    accelerator.load_state(str(tmp_path))
    for _ in range(2):
        accelerated_epoch(accelerator, model, prepared)
    assert_same(second, straight)
    assert_same(multipliers(prepared.optimizer), multipliers(reference))
    assert prepared.optimizer.dual.k == 5


def test_accelerate_in_bfloat16_keeps_float32_multipliers(accelerate):
    accelerator = accelerate(mixed_precision="bf16")
    model = Net().float()
    prepared_model, prepared = accelerator.prepare(model, wrapped(model))
    for x, target in float32_batches():
        prepared.zero_grad()
        with accelerator.autocast():
            loss, values = measure(prepared_model, x, target)
            loss = prepared.optimizer.augment(loss, **values)
        accelerator.backward(loss)
        prepared.step()
    prepared.optimizer.update_multipliers()
    y = multipliers(prepared.optimizer)
    assert y.dtype == torch.float32
    reference = Net()
    plain = wrapped(reference)
    train(reference, plain, epochs=1)
    # The forward pass has eight bits: a check of magnitudes.
    assert (y - multipliers(plain)).norm() < 0.05 * y.norm()


# Fabric


@pytest.fixture
def double() -> Iterator[Fabric]:
    """A Fabric in float64; it gives outputs of modules the default type, so that has to follow."""
    torch.set_default_dtype(F64)
    yield Fabric(accelerator="cpu", devices=1, precision="64-true")
    torch.set_default_dtype(torch.float32)


def fabric_epoch(fabric: Fabric, model: Any, optimizer: Any, data: Any) -> None:
    """One epoch through the object that Fabric hands out."""
    for x, target in data:
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        fabric.backward(optimizer.augment(loss, **values))
        optimizer.step()
    optimizer.update_multipliers()


def test_fabric_trains_as_the_full_lagrangian(double):
    ours, theirs = Net(), Net()
    model, optimizer = double.setup(ours, wrapped(ours))
    assert isinstance(optimizer, PowerALMOptimizer)
    for _ in range(3):
        fabric_epoch(double, model, optimizer, batches())
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


def test_fabric_shows_the_counters_of_the_optimizer_it_wraps(double):
    ours = Net()
    inner = wrapped(ours)
    model, optimizer = double.setup(ours, inner)
    for _ in range(2):
        fabric_epoch(double, model, optimizer, batches())
        assert optimizer.steps == inner.steps == 0
    for x, target in batches():
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        double.backward(optimizer.augment(loss, **values))
        optimizer.step()
    assert optimizer.steps == inner.steps == 3
    assert optimizer.should_update(steps=3)
    assert optimizer.gradient_norm == inner.gradient_norm < float("inf")


@pytest.mark.parametrize("total", [False, True], ids=["loss only", "total"])
def test_fabric_clips_as_a_plain_loop(double, total):
    ours, theirs = Net(), Net()
    model, optimizer = double.setup(ours, wrapped(ours))
    plain = wrapped(theirs)
    for x, target in batches():
        optimizer.zero_grad()
        loss, values = measure(model, x, target)
        double.backward(optimizer.augment(loss, **values))
        if total:
            optimizer.backward_constraints()
        double.clip_gradients(model, optimizer, max_norm=0.1)
        optimizer.step()

        plain.zero_grad()
        loss, values = measure(theirs, x, target)
        plain.augment(loss, **values).backward()
        if total:
            plain.backward_constraints()
        clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
    assert_same(ours, theirs)


def test_fabric_saves_and_loads_the_multipliers(double, tmp_path):
    straight = Net()
    reference = wrapped(straight)
    train(straight, reference, epochs=4)

    path = tmp_path / "checkpoint"
    for load in (False, True):
        net = Net()
        model, optimizer = double.setup(net, wrapped(net))
        if load:
            double.load(path, {"model": model, "optimizer": optimizer})
        for _ in range(2):
            fabric_epoch(double, model, optimizer, batches())
        if not load:
            double.save(path, {"model": model, "optimizer": optimizer})
    assert_same(net, straight)
    assert_same(multipliers(optimizer), multipliers(reference))
    assert optimizer.dual.k == 5


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_fabric_in_bfloat16_keeps_float32_multipliers(precision):
    net = Net().float()
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    model, optimizer = fabric.setup(net, wrapped(net))
    fabric_epoch(fabric, model, optimizer, float32_batches())
    y = multipliers(optimizer)
    assert y.dtype == torch.float32
    reference = Net()
    plain = wrapped(reference)
    train(reference, plain, epochs=1)
    # Eight bits of mantissa: a check of magnitudes.
    assert (y - multipliers(plain)).norm() < 0.1 * y.norm()


# torch.compile


def test_a_compiled_model_trains_as_the_full_lagrangian():
    ours, theirs = Net(), Net()
    optimizer = wrapped(ours)
    compiled = torch.compile(ours, backend="aot_eager")
    for _ in range(2):
        for x, target in batches():
            optimizer.zero_grad()
            loss, values = measure(compiled, x, target)
            optimizer.augment(loss, **values).backward()
            optimizer.step()
        optimizer.update_multipliers()
    twin = Twin(HYBRID, 0.7)
    train_twin(theirs, adam(theirs), twin, epochs=2)
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)


# Models


def compare(
    make: Callable[[], nn.Module],
    blocks: Callable[[Any], dict[str, Callable[[], Tensor]]],
    loss: Callable[[Any], Tensor],
    *,
    base: Callable[[nn.Module], optim.Optimizer] = adam,
    nu: float = 0.7,
) -> tuple[Any, PowerALMOptimizer]:
    """Train equalities of parameters only, and compare with the full Lagrangian."""
    ours, theirs = make(), make()
    constraints = ConstraintRegistry()
    for name, fn in blocks(ours).items():
        constraints.equality(name, fn)
    optimizer = constrained(base(ours), constraints, nu=nu)
    plain = base(theirs)

    def r() -> Tensor:
        return torch.cat([fn().reshape(-1) for fn in blocks(theirs).values()])

    twin = Twin([False] * len(r()), nu)
    for _ in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            loss(ours).backward()
            optimizer.step()
            plain.zero_grad()
            (loss(theirs) + twin.value(r())).backward()
            plain.step()
        optimizer.update_multipliers()
        twin.update(r())
    assert_same(ours, theirs)
    assert_same(multipliers(optimizer), twin.y)
    assert float(twin.y.norm()) > 0.1
    return ours, optimizer


def logits_loss(model: nn.Module) -> Tensor:
    x, target = batches()[0]
    return nn.functional.cross_entropy(model(x), target)


def test_a_weight_norm_parametrization_is_constrained_through_its_originals():
    def make():
        model = Net()
        weight_norm(model.first)
        return model

    model, _ = compare(make, lambda m: {"unit_rows": m.unit_rows}, logits_loss)
    assert len(list(model.parameters())) == 3


class Tied(nn.Module):
    """Encoder and decoder share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False, dtype=F64)
        self.decoder = nn.Linear(4, 3, bias=False, dtype=F64)
        self.decoder.weight = self.encoder.weight
        with torch.no_grad():
            self.encoder.weight.copy_(torch.linspace(-0.7, 0.9, 12, dtype=F64).reshape(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.encoder(x)) @ self.decoder.weight


def test_tied_weights_receive_the_gradient_of_every_use():
    def blocks(model):
        return {
            "encoder": lambda: model.encoder.weight.square().sum(1) - 1,
            "decoder": lambda: model.decoder.weight.sum() - 0.5,
        }

    x = batches()[0][0]
    model, optimizer = compare(Tied, blocks, lambda m: (m(x) - x).square().mean())
    assert len(optimizer.params) == 1
    assert model.encoder.weight is model.decoder.weight


class Words(nn.Module):
    """An embedding and a linear layer."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3, sparse=sparse, dtype=F64)
        self.out = nn.Linear(3, 1, bias=False, dtype=F64)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.linspace(-1, 1, 18, dtype=F64).reshape(6, 3))
            self.out.weight.copy_(torch.tensor([[0.5, -0.3, 0.8]]))

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embedding(words))


@pytest.mark.parametrize("which", ["embedding", "out"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_sparse_embedding_trains_as_a_dense_one(which, set_to_none):
    models = [Words(sparse=sparse) for sparse in (True, False)]
    words = torch.tensor([0, 2, 2, 5])
    optimizers = []
    for model in models:
        constraints = ConstraintRegistry()
        constraints.equality("unit", lambda m=model: getattr(m, which).weight.square().sum(1) - 1)
        base = optim.SGD(model.parameters(), lr=0.05)
        optimizers.append(constrained(base, constraints, nu=0.7))
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad(set_to_none)
            model(words).square().mean().backward()
            if set_to_none:
                assert model.embedding.weight.grad.is_sparse == (model is models[0])
            optimizer.step()
            optimizer.update_multipliers()
    assert_same(*models)
    assert_same(*(multipliers(optimizer) for optimizer in optimizers))
    if which == "out" and set_to_none:
        assert models[0].embedding.weight.grad.is_sparse  # nothing made it dense


def test_frozen_parameters_stay_and_the_constraint_moves_the_others():
    def make():
        model = Net()
        model.first.weight.requires_grad_(False)
        return model

    def blocks(model):
        return {"product": lambda: (model.second.weight @ model.first.weight).sum(1) - 1}

    everything = lambda model: optim.Adam(model.parameters(), lr=0.02)  # noqa: E731
    model, _ = compare(make, blocks, logits_loss, base=everything)
    assert torch.equal(model.first.weight, Net().first.weight)
    assert model.first.weight.grad is None


def test_a_parameter_thawed_later_is_constrained_from_then_on():
    model = Net()
    model.first.weight.requires_grad_(False)
    constraints = ConstraintRegistry()
    constraints.equality("product", lambda: (model.second.weight @ model.first.weight).sum(1) - 1)
    optimizer = constrained(optim.SGD(model.parameters(), lr=0.1), constraints)
    optimizer.step()
    model.first.weight.requires_grad_(True)
    optimizer.zero_grad()
    optimizer.step()
    assert float(model.first.weight.grad.norm()) > 0.1


class Slack(nn.Module):
    """The slack is in no loss: only the constraint gives it a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.slack = nn.Parameter(torch.tensor([0.5, 0.1, 0.3], dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_a_parameter_of_the_constraint_alone_is_trained():
    def blocks(model):
        return {"bound": lambda: model.net.second.weight.square().sum(1) + model.slack.square() - 1}

    model, _ = compare(Slack, blocks, logits_loss)
    assert not torch.equal(model.slack, Slack().slack)


# Two optimizers


def test_two_optimizers_own_their_blocks_of_one_registry():
    ours, theirs = Net(), Net()
    constraints = registry(ours, batch=False)
    constraints.equality("balance", size=1)

    def bases(model):
        return [
            optim.Adam([model.first.weight], lr=0.02),
            optim.SGD([model.second.weight], lr=0.02, momentum=0.9),
        ]

    first, second = bases(ours)
    optimizers = [
        constrained(first, constraints, owns=["unit_rows"], nu=0.7),
        constrained(second, constraints, owns=["balance", "budget"], nu=0.5),
    ]
    twins, plain = [Twin(STATIC[:5], 0.7), Twin([True, False], 0.5)], bases(theirs)
    for _ in range(3):
        total = torch.zeros(1, dtype=F64)
        for x, target in batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            optimizers[1].augment(loss, balance=values["balance"]).backward()
            for optimizer in optimizers:
                optimizer.step()

            for optimizer in plain:
                optimizer.zero_grad()
            loss, values = measure(theirs, x, target)
            # Each block acts on the parameters of its owner alone; batch blocks act on all.
            balance = values["balance"].reshape(1)
            A = static(theirs)
            pair = torch.cat([A[5:], balance])
            (loss + twins[0].value(A[:5]) + twins[1].value(pair)).backward()
            for optimizer in plain:
                optimizer.step()
            total += balance.detach()
        for optimizer in optimizers:
            optimizer.update_multipliers()
        A = static(theirs).detach()
        twins[0].update(A[:5])
        twins[1].update(torch.cat([A[5:], total / 3]))
    assert_same(ours, theirs)
    for optimizer, twin in zip(optimizers, twins, strict=True):
        assert_same(multipliers(optimizer), twin.y)
    assert set(constraints.violations()) == {"unit_rows", "budget", "balance"}


def test_an_unknown_name_in_owns_raises_at_the_first_step():
    model = Net()
    optimizer = constrained(adam(model), registry(model), owns=["unit_rows", "budgets"])
    with pytest.raises(KeyError, match="owns has no registered constraint 'budgets'"):
        optimizer.step()


class Game(nn.Module):
    """A generator of points and a discriminator of bounded slope."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 3, bias=False, dtype=F64)
        self.discriminator = nn.Linear(3, 1, bias=False, dtype=F64)
        with torch.no_grad():
            self.generator.weight.copy_(torch.tensor([[0.4, -0.8], [0.9, 0.1], [-0.5, 0.7]]))
            self.discriminator.weight.copy_(torch.tensor([[1.5, -0.5, 0.9]]))

    def slope(self) -> Tensor:
        return self.discriminator.weight.square().sum().reshape(1) - 1

    def spread(self, noise: Tensor) -> Tensor:
        return self.generator(noise).square().mean(0) - 0.5


def test_a_game_of_two_optimizers_equals_two_full_lagrangians():
    """As a GAN: each player has its own constraint, and its backward fills the other's .grad."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(6, 8, 2, generator=generator, dtype=F64)
    real = torch.randn(6, 8, 3, generator=generator, dtype=F64)
    ours, theirs = Game(), Game()
    slope, spread = ConstraintRegistry(), ConstraintRegistry()
    slope.inequality("slope", ours.slope)
    spread.equality("spread", size=3)
    critic = constrained(adam(ours.discriminator), slope, nu=0.7)
    artist = constrained(adam(ours.generator), spread, nu=0.7)
    plain_critic, plain_artist = adam(theirs.discriminator), adam(theirs.generator)
    twin_slope, twin_spread = Twin([True], 0.7), Twin([False] * 3, 0.7)

    def critic_loss(game, z, x):
        gap = game.discriminator(game.generator(z).detach()).mean() - game.discriminator(x).mean()
        return gap + 0.1 * game.discriminator.weight.square().sum()

    def artist_loss(game, z):
        return -game.discriminator(game.generator(z)).mean()

    for _ in range(2):
        total = torch.zeros(3, dtype=F64)
        for z, x in zip(noise, real, strict=True):
            critic.zero_grad()
            critic_loss(ours, z, x).backward()
            critic.step()
            artist.zero_grad()
            artist.augment(artist_loss(ours, z), spread=ours.spread(z)).backward()
            artist.step()

            plain_critic.zero_grad()
            (critic_loss(theirs, z, x) + twin_slope.value(theirs.slope())).backward()
            plain_critic.step()
            plain_artist.zero_grad()
            value = theirs.spread(z)
            (artist_loss(theirs, z) + twin_spread.value(value)).backward()
            plain_artist.step()
            total += value.detach() / len(noise)
        critic.update_multipliers()
        artist.update_multipliers()
        twin_slope.update(theirs.slope())
        twin_spread.update(total)
    assert_same(ours, theirs)
    assert_same(multipliers(critic), twin_slope.y)
    assert_same(multipliers(artist), twin_spread.y)


def test_two_copies_of_a_pair_of_optimizers_keep_their_owners():
    model = Net()
    constraints = registry(model, batch=False)
    optimizers = [
        constrained(optim.SGD([model.first.weight], 0.1), constraints, owns=["unit_rows"]),
        constrained(optim.SGD([model.second.weight], 0.1), constraints, owns=["budget"]),
    ]

    def step(net, pair):
        for optimizer in pair:
            optimizer.zero_grad()
        logits_loss(net).backward()
        for optimizer in pair:
            optimizer.step()

    step(model, optimizers)
    model_2, optimizers_2 = copy.deepcopy((model, optimizers))
    step(model, optimizers)
    step(model_2, optimizers_2)
    assert_same(model, model_2)
    assert optimizers_2[0].constraints is optimizers_2[1].constraints
