"""Two processes train as one: DDP, ZeRO and FSDP2 against a single process on the global batches.

The two processes run all cases of run_cases.py once, over gloo; four run some of them. The tests
here compare.
"""

from pathlib import Path

import pytest
import torch

from tests.processes import distance, run_once, start, wait
from tests.training.distributed.ddp_cases import Slack
from tests.training.distributed.ranks_training import train
from tests.training.distributed.run_cases import FOUR, cases
from tests.versions import TORCH
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, full

# Runs as short as these may be said to have few updates.
pytestmark = pytest.mark.filterwarnings("ignore::torch_powalm.ConstraintWarning")
CASES = cases(Path())


TIMEOUT = 400  # seconds for all cases on a busy machine; alone they take a tenth


def results_of(size, folder):
    def run():
        module = "tests.training.distributed.run_cases"
        wait([start(module, rank, size, folder) for rank in range(size)], TIMEOUT)

    run_once(folder, run, TIMEOUT)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.fixture(scope="session")
def results(session_folder):
    """The outcomes of all cases on both ranks."""
    return results_of(2, session_folder / "distributed")


@pytest.fixture(scope="session")
def results_of_four(session_folder):
    """The outcomes of some cases on four ranks."""
    return results_of(4, session_folder / "four_ranks")


def skip_what_is_missing(name):
    """Skip a case that needs FSDP2 or scipy where there is none."""
    sharded = ("sharded", "zoo", "indexed: shards", "captured", "distributed checkpoint")
    if name.startswith(sharded) or name in ("automatic shards", "low-precision shards"):
        if TORCH < (2, 7):
            pytest.skip("fully_shard needs torch 2.7")
    elif name.startswith("certified"):
        pytest.importorskip("scipy")


@pytest.fixture
def outcomes(results):
    """The outcome of a case on both ranks."""

    def of(name):
        skip_what_is_missing(name)
        both = [result[name] for result in results]
        for outcome in both:
            assert not str(outcome).startswith("failed"), outcome
        return both

    return of


def alone(name):
    """The same case in this process, without torch.distributed."""
    torch.set_num_threads(1)
    run_case, settings = CASES[name]
    return run_case(0, 1, **settings)


def named(prefix):
    names = [name for name in CASES if name.startswith(prefix)]
    return pytest.mark.parametrize("name", names)


def assert_one_training(name, both):
    assert distance(*both) == 0.0  # to the last bit on all ranks
    assert distance(both[0], alone(name)) < 1e-12


@named("equal: ")
def test_two_ranks_of_ddp_train_as_one_process_on_the_global_batches(name, outcomes):
    both = outcomes(name)
    assert_one_training(name, both)
    assert max(float(y.abs().max()) for y in both[0]["y"].values()) > 0.1


def test_a_line_search_sees_one_lagrangian_when_the_closure_returns_the_mean_loss(outcomes):
    both = outcomes("line search")
    assert distance(*both) == 0.0
    # Sixty evaluations: the cubic interpolation of the search magnifies rounding errors.
    assert distance(both[0], alone("line search")) < 1e-8


@named("slack: ")
def test_a_parameter_of_the_constraint_alone_may_be_inside_ddp_or_outside(name, outcomes):
    both = outcomes(name)
    assert_one_training(name, both)
    assert distance(both[0]["params"]["slack"], Slack().slack.detach()) > 0.01


def test_a_low_precision_forward_keeps_the_ranks_together(outcomes):
    both = outcomes("low precision")
    assert distance(*both) == 0.0
    assert distance(both[0], alone("low precision")) < 1e-2  # bfloat16 has eight bits
    assert all(y.dtype == torch.float32 for y in both[0]["y"].values())


# Certificates and margin="auto"


@pytest.mark.parametrize("name", ["certified: split", "certified: whole"])
def test_margins_and_certificates_of_two_ranks_are_those_of_one_process(name, outcomes):
    (one, other), expected = outcomes(name), alone(name)
    for key in ("training", "margins"):
        assert distance(one[key], other[key]) == 0.0
    assert distance(one["training"], expected["training"]) < 1e-12
    assert float(one["training"]["y"]["missed"]) > 0.05
    assert float(one["margins"]["missed"]) > 0.05
    assert distance(one["estimates"], expected["estimates"]) < 1e-12
    for found in (one, other):
        assert (found["samples"], found["verdicts"]) == (expected["samples"], expected["verdicts"])
    # The bound of a mean depends on the order of samples, which differs where they are split.
    same = slice(None) if name.endswith("whole") else slice(1)
    assert distance(one["upper"][same], expected["upper"][same]) < 1e-12
    assert distance(one["upper"], expected["upper"]) < 0.02
    assert distance(one["margins"], expected["margins"]) < (1e-7 if same.stop is None else 0.02)


def test_samples_that_a_sampler_repeats_to_fill_the_ranks_are_refused(outcomes):
    for message, samples in outcomes("certified: padded"):
        assert message.startswith("loader must draw every sample once, got a DistributedSampler")
        assert message.endswith("that repeats 1 to fill the ranks (set drop_last=True)")
        assert samples == "400"


# What would be wrong, so that the tests above mean something


@named("wrong: a norm")
def test_a_weight_from_each_rank_alone_lets_the_multipliers_drift_apart(name, outcomes):
    both = outcomes(name)
    assert distance(both[0]["y"], both[1]["y"]) > 1e-2
    assert distance(both[0]["params"], alone(name)["params"]) > 1e-3


def test_a_mean_of_ratios_is_another_constraint_than_the_ratio_of_sums(outcomes):
    both = outcomes("wrong: a mean of ratios")
    assert distance(*both) == 0.0
    assert distance(both[0], alone("wrong: a mean of ratios")) > 1e-2


def test_a_random_function_raises_at_the_first_step_on_every_rank(outcomes):
    for messages in outcomes("random: at once"):
        assert "constraint 'probe' must be the same on every rank" in messages[0]
        assert "no random numbers on all ranks" in messages[0]


def test_check_ranks_finds_ranks_that_have_drifted_apart_later(outcomes):
    for messages in outcomes("random: later"):
        assert messages[:2] == ["", ""]
        assert "must be the same on every rank" in messages[2]


def test_random_numbers_that_are_the_same_on_every_rank_are_fine(outcomes):
    for messages in outcomes("random: one seed"):
        assert messages == ["", "", ""]


# Communication


def test_one_all_reduce_per_augment_and_two_at_the_update(outcomes):
    for found in outcomes("collectives"):
        # 6 blocks: 14 sums, 12 weights or counts, and a header of 6. At first ranks also compare
        # signatures (16), and meet in the first five backward passes. At the first step and at an
        # update they compare where they are: 8 words, 3 numbers and 2 static blocks, twice.
        sizes = (16, 16, 32, 32, 32, 26, 32, 32, 32, 32, 32, 26)
        assert found["calls"] == [("all_reduce", n) for n in sizes]
        # after augment() and after step() of three batches, and after update and violations
        assert found["seen"] == [3, 6, 7, 8, 9, 10, 12]


def test_a_given_group_is_used_kept_by_a_deep_copy_and_dropped_by_a_pickle(outcomes):
    both = outcomes("groups")
    reference = outcomes("equal: all nu=0.7")[0]
    for found in both:
        assert distance(found["result"], reference) == 0.0
        assert found["kept"]
        assert found["dropped"]


def test_a_process_outside_of_the_group_is_told(outcomes):
    inside, outside = outcomes("not in the group")
    assert inside == "built"
    assert outside.startswith("process_group must be None or a torch.distributed.ProcessGroup that")


def test_a_process_group_must_be_one():
    p = torch.nn.Parameter(torch.ones(2))
    constraints = ConstraintRegistry()
    constraints.equality("sum", lambda: p.sum())
    with pytest.raises(TypeError, match=r"process_group must be None or a .* is in, got str"):
        PowerALMOptimizer(torch.optim.SGD([p], 0.1), constraints, process_group="gloo")


# A batch of one rank that is not finite


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("loss", "gradient of the loss"),
        ("value", "constraint 'mean' must be finite, got nan or inf"),
        ("statistics", "constraint 'rate' must be finite, got nan or inf"),
    ],
)
def test_all_ranks_raise_together_and_nothing_has_moved(how, message, outcomes):
    for found in outcomes(f"raised: {how}"):
        assert found["message"].startswith(message)
        assert distance(found["before"], found["after"]) == 0.0
        assert found["k"] == 2


@named("skipped: ")
def test_all_ranks_skip_together_and_train_on_as_without_that_batch(name, outcomes):
    both = outcomes(name)
    assert distance(*both) == 0.0
    without = train(0, 1, skip_batch=(1, 1))
    assert [int(outcome.pop("skipped")) for outcome in (*both, without)] == [1, 1, 0]
    assert distance(both[0], without) < 1e-12


# FSDP2


@named("zoo: ")
def test_constraints_of_sharded_parameters_equal_those_of_whole_ones(name, outcomes):
    assert_one_training(name, outcomes(name))


@named("sharded: ")
def test_blocks_of_every_kind_train_on_a_sharded_model(name, outcomes):
    both = outcomes(name)
    assert_one_training(name, both)
    assert int(both[0]["skipped"]) == ("skipped" in name)


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks_of_fsdp2_train_as_one_process(name, results_of_four):
    skip_what_is_missing(name)
    found = [result[name] for result in results_of_four]
    for outcome in found:
        assert not str(outcome).startswith("failed"), outcome
    if "checkpoint" in name:
        found = [found[0]["straight"], *(outcome["resumed"] for outcome in found)]
    for outcome in found[1:]:
        assert distance(found[0], outcome) == 0.0
    if "checkpoint" not in name:
        assert distance(found[0], alone(name)) < 1e-12


# One constraint for each sample


@named("indexed: ")
def test_samples_of_all_ranks_have_the_same_multipliers_as_in_one_process(name, outcomes):
    both = outcomes(name)
    assert_one_training(name, both)
    assert float(both[0]["y"].max()) > 0.01


def test_what_the_first_rank_has_saved_resumes_all_ranks_bit_for_bit(outcomes):
    for found in outcomes("resumed samples"):
        assert distance(found["straight"], found["resumed"]) == 0.0


@named("skipped samples: ")
def test_all_ranks_skip_samples_that_are_not_finite(name, outcomes):
    both = outcomes(name)
    assert_one_training(name, both)
    assert int(both[0]["skipped"]) > 0


def test_units_of_batch_blocks_are_measured_on_shards(outcomes):
    # One step for each batch block measures it alone, so this is not the training of one process.
    one, other = outcomes("automatic shards")
    for name, value in one["params"].items():
        assert torch.equal(value, other["params"][name])
    assert all(y is None or torch.isfinite(y).all() for y in one["y"].values())


def test_a_captured_parameter_that_sharding_replaced_is_said(outcomes):
    for message in outcomes("captured"):
        assert message.startswith("constraint 'rows' must depend on a parameter of the optimizer")
        assert "through the module" in message


def test_layers_in_bfloat16_leave_constraints_and_multipliers_in_float32(outcomes):
    both = outcomes("low-precision shards")
    for found in both:
        assert found["forward"] == ["torch.bfloat16"]
        assert found["seen"] == ["torch.float32"]
        assert found["outcome"]["y"]["rows"].dtype == torch.float32
    assert distance(both[0]["outcome"], both[1]["outcome"]) == 0.0


def test_a_distributed_checkpoint_goes_on_to_the_same_bits(outcomes):
    both = outcomes("distributed checkpoint")
    assert distance(both[0], both[1]) == 0.0
    assert distance(both[0]["straight"], both[0]["resumed"]) == 0.0
    assert float(both[0]["resumed"]["beta"]) == pytest.approx(1.1**4)


@named("fsdp1: ")
def test_fsdp1_raises(name, outcomes):
    for message in outcomes(name):
        assert message.startswith("parameters must not be flattened by FullyShardedDataParallel")
        assert message.endswith("use torch.distributed.fsdp.fully_shard")


def test_full_leaves_a_plain_tensor_alone():
    p = torch.nn.Parameter(torch.ones(2))
    assert full(p) is p
