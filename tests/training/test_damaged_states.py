"""States with wrong values: refused by name before anything changes."""

import copy
import math
import random

import pytest
import torch

from experiments.attacks.mutations import with_entry
from experiments.attacks.small_training import BASES, Training, same, trained
from experiments.attacks.state_dicts import attack_training
from torch_powalm import ConstraintRegistry, MultiplierState, PowerALMOptimizer
from torch_powalm.checks.state_checks import check_count, check_flag, check_number

NAN = math.nan
F64 = torch.float64


def assert_refused(path, value, message, base="adam", settings="given", steps=7):
    """Load a state with another value into a training of its own, which must stay as it is."""
    source, target = trained(base, settings, steps), trained(base, settings, 3)
    state = copy.deepcopy(source.optimizer.state_dict())
    before = copy.deepcopy(target.optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        target.optimizer.load_state_dict(with_entry(state, path, value))
    assert same(before, target.optimizer.state_dict())


ROWS = torch.zeros(4, dtype=F64)
LOSS = torch.ones(2, dtype=F64)
OURS = [
    (("y", "rows"), torch.full((4,), NAN), "constraint 'rows' in state_dict must be finite, got n"),
    (("y", "loss"), -LOSS, "constraint 'loss' in state_dict must be nonnegative for inequalities"),
    (("y", "rows"), ROWS + 11, "constraint 'rows' in state_dict must be at most 10.0, got 11.0"),
    (("y", "rows"), ROWS - 11, "constraint 'rows' in state_dict must be at least -10.0, got -11"),
    (("y", "rows"), ROWS.half(), "must be of float32 or float64, got torch.float16"),
    (("y", "rows"), ROWS[None], r"must have shape \(4,\), got \(1, 4\)"),
    (("y", "rows"), ROWS.to_sparse(), "must be a dense tensor with data"),
    (("y",), None, r"\['k'\] must be 1 as long as y is None, got 2"),
    (("y",), [], r"\['y'\] must be a mapping, got list"),
    (("beta",), NAN, r"\['powalm'\]\['beta'\] must be finite, got nan"),
    (("beta",), 0.0, r"\['beta'\] must be positive, got 0.0"),
    (("beta",), 101.0, r"\['beta'\] must be at most 100.0, got 101.0"),
    (("beta",), 10**400, r"\['beta'\] must be a number that a float can hold"),
    (("k",), -3, r"\['k'\] must be at least 1, got -3"),
    (("k",), 1e300, r"\['k'\] must be an integer, got 1e\+300"),
    (("k",), 2**60, r"\['k'\] must be at most 2\*\*53"),
    (("start_norm",), -1.0, r"\['start_norm'\] must be nonnegative, got -1.0"),
    (("last_norm",), NAN, r"\['last_norm'\] must be a number or inf, got nan"),
    (("steps",), "abc", r"\['steps'\] must be an integer, got 'abc'"),
    (("steps",), 99, r"\['steps'\] must be at most 'total_steps', got 99 and 7"),
    (("skipped",), -1, r"\['skipped'\] must be nonnegative, got -1"),
    (("stranger",), 1, r"must not have unknown entries, got 'stranger'"),
    (("epoch", "loss"), (torch.ones(3), LOSS), r"\['loss'\]\[0\] must have 2 entries, got 3"),
    (("epoch", "loss"), (LOSS, -LOSS), r"\['epoch'\]\['loss'\]\[1\] must be nonnegative, got -1"),
    (("epoch", "rate"), (LOSS, 0.0), r"\['epoch'\]\['rate'\]\[1\] must be positive, got 0.0"),
    (("epoch", "rate"), (torch.ones(0), 1.0), r"\[0\] must be a vector with at least one entry"),
    (("epoch", "rate"), (torch.ones(3), 1.0), r"\[0\] must be statistics of 'rate': .*1 entries"),
    (("epoch", "rate"), (LOSS,), r"\['epoch'\]\['rate'\] must have 2 items, got 1"),
    (("epoch",), {"rows": ROWS}, r"\['epoch'\] must have registered constraints only, got 'rows'"),
    (("seen", "loss"), LOSS, r"\['seen'\]\['loss'\] must be a boolean tensor, got torch.float64"),
    (("seen", "loss"), LOSS < 0, r"\['seen'\]\['loss'\] must have the entries of the batches in"),
    (("units", "due"), [0, 1], r"\['due'\]\[0\] must be True or False, got 0"),
    (("units", "pull"), 3, r"\['pull'\] must be a list, got 3"),
    (("settings", "nu"), 0.5, r"\['nu'\] must be 0.8 as in this run, got 0.5; strict=False"),
    (("settings", "sigma"), 1, r"\['sigma'\] must be 'penalty' as in this run, got 'paper'"),
    (("settings", "coupling"), 1, r"\['coupling'\] must be 'all' as in this run, got 'block'"),
    (("settings", "coupling"), 2, r"\['coupling'\] must be less than 2, got 2"),
    (("settings", "blocks", "loss"), 1, "'inequality of the batch' as in this run, got 'equality"),
]


@pytest.mark.parametrize(("path", "value", "message"), OURS)
def test_a_wrong_value_is_refused_by_name(path, value, message):
    state = trained("adam", "given", 7).optimizer.state_dict()
    if path == ("stranger",):
        path, value = ("powalm",), {**state["powalm"], "stranger": value}
    else:
        path = ("powalm", *path)
    if path == ("powalm", "y") and value is None:
        run = Training("adam", "given")
        run.advance(7)
        run.optimizer.update_multipliers()
        state = run.optimizer.state_dict()
        with pytest.raises(ValueError, match=message):
            Training("adam", "given").optimizer.load_state_dict(with_entry(state, path, None))
        return
    assert_refused(path, value, message)


UNITS = [
    (("used", "rows"), NAN, r"\['used'\]\['rows'\] must be finite, got nan"),
    (("used",), {}, r"\['used'\] must have 'rows', got none"),
    (("pull",), [1.0], "must have one 'pull' and one of 'rates' for each measuring step"),
    (("rates",), [2.0, 1.0], r"\['rates'\] must begin with the learning rate and the largest"),
    (("pulls",), {}, "must have 'sizes' and 'pulls' of 'rows', got"),
    (("reached",), {}, r"\['reached'\] must have '.*' as 'moves' does, got none"),
    (("reached", "rows"), [9], r"\['rows'\]\[0\] must be the index of one of 4 parameters, got 9"),
    (("alone",), ["x"], r"\['alone'\]\[0\] must be the name of a constraint, got 'x'"),
    (("before",), ROWS, r"\['before'\] must have 7 entries, got 4"),
    (("pace",), torch.zeros(7, dtype=F64), r"\['pace'\] must be at least 1.0, got 0.0"),
    (("pace",), None, "must have 'before' and 'pace' or neither, got one of them"),
    (("at",), [ROWS], r"\['at'\] must have 4 items, got 1"),
    (("at",), [1, 2, 3, 4], r"\['at'\]\[0\] must be a tensor of torch.float64, got 1"),
]


@pytest.mark.parametrize(("path", "value", "message"), UNITS)
def test_wrong_measurements_are_refused_by_name(path, value, message):
    assert_refused(("powalm", "units", *path), value, message, settings="automatic", steps=30)


def test_a_measurement_must_be_complete_once_multipliers_have_started():
    state = trained("adam", "automatic", 30).optimizer.state_dict()["powalm"]["units"]
    short = {**state, "pull": state["pull"][:3], "rates": state["rates"][:5]}
    message = r"\['pull'\] must have 20 items once multipliers have started, got 3"
    assert_refused(("powalm", "units"), short, message, settings="automatic", steps=30)


def test_measured_and_given_penalties_do_not_mix():
    automatic = trained("adam", "automatic", 30).optimizer.state_dict()
    given = trained("adam", "given", 7).optimizer
    with pytest.raises(ValueError, match="must have a given beta_1 as in this run, got measured"):
        given.load_state_dict(automatic, strict=False)


DEEP: list = []
DEEP.append(DEEP)
FOREIGN = {"step": 1, "mean": torch.ones(2, 4, dtype=F64), "more": DEEP}
BASE = [
    ("adam", ("state", 0, "exp_avg"), torch.ones(3), r"'exp_avg'\] must be a tensor of shape \(4,"),
    ("adam", ("state", 0, "exp_avg_sq"), -torch.ones(4, 3), "'exp_avg_sq'.* must be nonnegative"),
    ("adam", ("state", 0, "exp_avg"), torch.ones(4, 3).long(), "must be a floating-point tensor"),
    ("adam", ("state", 0, "step"), torch.tensor(-1.0), "'step'.* must be nonnegative, got -1"),
    ("adam", ("state", 0, "step"), 1.5, "'step'.* must be a whole number, got 1.5"),
    ("adam", ("state", 0, "step"), "x", "'step'.* must be a number, got 'x'"),
    ("adam", ("state", 0), {"step": 1.0}, r"\['state'\]\[0\] must have 'exp_avg', got 'step'"),
    ("adam", ("state", 0), 3, r"\['state'\]\[0\] must be a mapping, got 3"),
    ("adam", ("state",), {9: {}}, r"\['state'\]\[9\] must belong to one of 4 parameters"),
    ("adam", ("state",), [], r"\['state'\] must be a mapping, got list"),
    ("adam", ("param_groups",), [], "must have 1 parameter groups, got 0"),
    ("adam", ("param_groups", 0), 3, r"\['param_groups'\]\[0\] must be a mapping, got 3"),
    ("adam", ("param_groups", 0, "lr"), NAN, r"\['lr'\] must be finite, got nan"),
    ("adam", ("param_groups", 0, "lr"), "x", r"\['lr'\] must be a number, got 'x'"),
    ("adam", ("param_groups", 0, "lr"), -1.0, r"\['lr'\] must be nonnegative, got -1.0"),
    ("adam", ("param_groups", 0, "lr"), torch.ones(2), r"\['lr'\] must be a number, got a tensor"),
    ("adam", ("param_groups", 0, "betas"), (0.9, 1.0), r"\['betas'\]\[1\] must be less than 1"),
    ("adam", ("param_groups", 0, "foreach"), 7, r"\['foreach'\] must be None, True or False, got"),
    ("adam", ("param_groups", 0, "maximize"), True, r"\['maximize'\] must be False as in this run"),
    ("adam", ("param_groups", 0, "amsgrad"), "x", r"\['amsgrad'\] must be True or False, got 'x'"),
    ("adam", ("param_groups", 0, "params"), [0, 1, 2], "doesn't match the size"),
    ("adam", ("param_groups", 0, "params"), [1, 0, 2, 3], "must number the 4 parameters from 0 on"),
    ("adam", ("param_groups", 0, "params"), [{}] * 4, "must be the number or the name of a param"),
    ("rmsprop", ("state", 0, "grad_avg"), torch.ones(4, 3), "squares of at most 'square_avg'"),
    ("lbfgs", ("state", 0, "d"), torch.ones(2), r"'d'\] must be a tensor of shape \(26,\)"),
    ("lbfgs", ("state", 0, "n_iter"), -1, "'n_iter'.* must be nonnegative, got -1"),
    ("adam", ("state", 0, "exp_avg"), [], r"'exp_avg'\] must be a tensor of shape .*, got list"),
    ("adam", ("state", 0, "exp_avg"), torch.ones(4, 3, device="meta"), "a dense tensor with data"),
    ("adam", ("state", 0, "step"), torch.tensor(1j), "'step'.* must be a number, got a tensor"),
    ("adam", ("state", 0, "step"), 1e300, "'step'.* must be at most 9007199254740992"),
    (
        "adam",
        ("param_groups", 0, "lr"),
        torch.tensor(1),
        r"\['lr'\] must be a number, got a tensor",
    ),
    ("adam", ("param_groups", 0, "lr"), torch.tensor(NAN), r"\['lr'\] must be finite, got nan"),
    ("rmsprop", ("param_groups", 0, "alpha"), 1.5, r"\['alpha'\] must be at most 1, got 1.5"),
    ("lbfgs", ("state", 0, "old_stps"), [], r"'old_stps'\] must have \d+ items, got 0"),
    ("lbfgs", ("state", 0, "ro", 3), torch.ones(0), "'ro'.* without dimensions, got a tensor"),
    ("lbfgs", ("state", 0, "al"), [], r"'al'\] must have 100 items, got 0"),
    ("lbfgs", ("state", 0, "d"), LOSS.repeat(13).long(), "must be a floating-point tensor"),
    ("lbfgs", ("state",), {1: {"step": 1}}, "must be empty: LBFGS keeps its state with the first"),
    ("lbfgs", ("param_groups", 0, "history_size"), 2, r"'old_dirs'\] must have at most 2 items"),
    ("lbfgs", ("param_groups", 0, "max_iter"), 2.5, r"\['max_iter'\] must be an integer, got 2.5"),
    ("lbfgs", ("param_groups", 0, "line_search_fn"), "x", "must be None as in this run, got 'x'"),
    ("lbfgs", ("state", 0, "prev_loss"), "x", "'prev_loss'.* must be a number, got 'x'"),
    ("adam", ("param_groups", 0, "betas"), "0.50.9", r"\['betas'\] must be a list, got '0.50.9'"),
    ("sgd", ("param_groups", 0, "dampening"), torch.ones(1), r"\['dampening'\] must be a number"),
    ("foreign", ("state", 1, "step"), {}, r"\['step'\] must be a number or a tensor, got dict"),
    ("foreign", ("state", 2), FOREIGN, r"\['more'\].*… must have at most 50 levels"),
    ("adafactor", ("param_groups", 0, "beta2_decay"), NAN, r"\['beta2_decay'\] must be finite"),
]
BASE = [row for row in BASE if row[0] in BASES]  # older versions of torch lack some


@pytest.mark.parametrize(("base", "path", "value", "message"), BASE)
def test_a_wrong_value_of_the_base_is_refused_by_name(base, path, value, message):
    assert_refused(path, value, message, base)


def test_an_unused_base_of_its_own_must_keep_the_same_kinds_for_all_parameters():
    state = copy.deepcopy(trained("foreign", "given", 3).optimizer.state_dict())
    state["state"][2]["mean"] = -0.5
    with pytest.raises(ValueError, match=r"\[2\]\['mean'\] must be a tensor for all parameters"):
        Training("foreign", "given").optimizer.load_state_dict(state)


def test_an_unused_base_of_its_own_must_not_keep_transposed_tensors():
    state = copy.deepcopy(trained("foreign", "given", 3).optimizer.state_dict())
    state["state"][2]["mean"] = state["state"][2]["mean"].T
    with pytest.raises(ValueError, match=r"\['mean'\] must be a tensor of shape \(2, 4\), got"):
        Training("foreign", "given").optimizer.load_state_dict(state)


def test_measured_margins_must_be_in_a_state_that_has_them():
    source = trained("adam", "measured margin", 7).optimizer.state_dict()
    target = trained("adam", "measured margin", 25)
    before, bad = copy.deepcopy(target.optimizer.state_dict()), copy.deepcopy(source)
    bad["powalm"]["margin"] = {}
    with pytest.raises(ValueError, match=r"\['margin'\] must have 'pieces', got no entries"):
        target.optimizer.load_state_dict(bad)
    assert same(before, target.optimizer.state_dict())
    target.optimizer.load_state_dict(bad, strict=False)
    given = trained("adam", "given", 3).optimizer
    given.load_powalm_state_dict(source["powalm"], strict=False)
    assert given.powalm_state_dict()["margin"] == {}


def test_tensors_that_share_memory_are_loaded_as_their_own():
    source, target = trained("adam", "given", 7), trained("adam", "given", 3)
    state = source.base.state_dict()["state"]
    shared = {i: {**kept, "step": state[0]["step"]} for i, kept in state.items()}
    shared[0]["exp_avg"] = shared[0]["exp_avg_sq"] = state[0]["exp_avg_sq"]
    shared[1]["exp_avg"] = torch.zeros((), dtype=F64).expand(4)
    expected, steps = copy.deepcopy(shared), float(state[0]["step"])
    target.optimizer.load_state_dict({**source.optimizer.state_dict(), "state": shared})
    assert same(target.base.state_dict()["state"], expected)
    target.advance(1)
    moved = target.base.state_dict()["state"]
    assert {float(kept["step"]) for kept in moved.values()} == {steps + 1}
    assert not torch.equal(moved[0]["exp_avg"], moved[0]["exp_avg_sq"])


def test_names_of_parameters_in_another_order_are_refused():
    model = torch.nn.Linear(2, 2)
    try:
        base = torch.optim.SGD(model.named_parameters(), lr=0.1)
    except TypeError:
        pytest.skip("this torch keeps no names")
    constraints = ConstraintRegistry()
    constraints.equality("bias", lambda: model.bias)
    optimizer = PowerALMOptimizer(base, constraints)
    state = copy.deepcopy(optimizer.state_dict())
    names = state["param_groups"][0]["param_names"]
    names.reverse()
    with pytest.raises(ValueError, match=r"\['param_names'\] must have the order of this run"):
        optimizer.load_state_dict(state)


def test_settings_of_another_run_load_if_asked():
    source, target = trained("adam", "given", 7), Training("adam", "paper")
    state = source.optimizer.state_dict()
    with pytest.raises(ValueError, match=r"\['nu'\] must be 0.6 as in this run, got 0.8"):
        target.optimizer.load_state_dict(state)
    target.optimizer.load_state_dict(state, strict=False)
    assert same(target.optimizer.multipliers(), source.optimizer.multipliers())
    del state["powalm"]["settings"]
    with pytest.raises(ValueError, match="must have 'settings', got"):
        target.optimizer.load_state_dict(state)
    target.optimizer.load_powalm_state_dict(state["powalm"], strict=False)
    target.advance(3)
    assert target.finite()


def test_a_larger_multiplier_than_allowed_here_is_lowered_if_asked():
    target = Training("adam", "given")
    state = copy.deepcopy(trained("adam", "given", 7).optimizer.state_dict()["powalm"])
    state["y"]["rows"] = ROWS + 50
    state["beta"] = 1e9
    target.optimizer.load_powalm_state_dict(state, strict=False)
    assert target.optimizer.multipliers()["rows"].tolist() == [10.0] * 4
    assert target.optimizer.dual.beta == 100.0


def test_a_base_that_fails_while_loading_stays_as_it_was(monkeypatch):
    target = trained("sgd", "given", 3)
    before = copy.deepcopy(target.optimizer.state_dict())

    def fail(state_dict):
        target.base.param_groups = []
        raise RuntimeError("half loaded")

    monkeypatch.setattr(target.base, "load_state_dict", fail)
    with pytest.raises(RuntimeError, match="half loaded"):
        target.optimizer.load_state_dict(trained("sgd", "given", 7).optimizer.state_dict())
    assert same(before, target.optimizer.state_dict())


def test_an_unstarted_state_replaces_a_started_one():
    target = trained("adam", "given", 30)
    target.optimizer.load_state_dict(Training("adam", "given").optimizer.state_dict())
    assert not target.optimizer.dual.started
    assert target.optimizer.state_dict()["powalm"]["latest"] == {}
    assert (target.optimizer.dual.start_norm, target.optimizer.dual.last_norm) == (0.0, math.inf)


def test_bytes_of_multipliers_are_checked():
    multipliers = MultiplierState(trained("adam", "given", 7).optimizer)
    with pytest.raises(ValueError, match=r"state_dict\['powalm'\] must be bytes, got 'x'"):
        multipliers.load_state_dict({"powalm": "x"})
    with pytest.raises(ValueError, match="corrupted or incomplete checkpoint: state_dict"):
        multipliers.load_state_dict({"powalm": b"x"})


def test_primitive_checks():
    assert (check_number(2, "a"), check_count(2, "a"), check_flag(True, "a")) == (2.0, 2, True)
    with pytest.raises(ValueError, match=r"a must be at least 0.5, got 0.1"):
        check_number(0.1, "a", low=0.5)
    with pytest.raises(ValueError, match=r"a must be a number, got True"):
        check_number(True, "a")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_random_mutations_are_refused_or_loaded_as_they_are(seed):
    """A part of `make attack`."""
    outcomes = [attack_training(random.Random(f"{seed} {i}")) for i in range(8)]
    assert "refused" in outcomes


@pytest.mark.skipif("adafactor" not in BASES, reason="this torch has no Adafactor")
@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (1, {"step": torch.tensor(7.0)}, "must have 'variance'"),
        (1, {"step": torch.tensor(7.0), "variance": {}}, r"\['variance'\] must be a tensor of sh"),
        (0, {"step": torch.tensor(7.0)}, "must have 'row_var'"),
        (0, {"step": torch.tensor(7.0), "row_var": torch.ones(4, 1), "col_var": None}, "'col_var'"),
        (0, {"step": torch.tensor(7.0), "row_var": LOSS, "col_var": LOSS}, "'row_var'.* must be a"),
    ],
)
def test_what_adafactor_keeps_is_checked(number, value, message):
    assert_refused(("state", number), value, message, "adafactor")


def test_a_move_that_is_almost_zero_divides_nothing():
    target = trained("rmsprop", "margin", 22)
    state = copy.deepcopy(target.optimizer.state_dict())
    moves = state["powalm"]["units"]["moves"]
    moves.update(dict.fromkeys(moves, 5e-324))
    target.optimizer.load_state_dict(state)
    target.advance(3)
    target.optimizer.update_multipliers()
    target.advance(1)
    assert target.finite()


@pytest.mark.parametrize(
    ("base", "path", "value"),
    [
        ("lbfgs", ("param_groups", 0, "line_search_fn"), True),
        ("wolfe", ("param_groups", 0, "line_search_fn"), None),
        ("adagrad", ("state", 0), {}),
    ],
)
def test_what_torch_loads_and_fails_on_later_is_refused(base, path, value):
    assert_refused(path, value, "must", base)
