"""The dual step of the paper's runs, from the coordinates of its Figure 4."""

import pytest

from experiments import dual_step_evidence as evidence
from experiments import note_values
from experiments import paper_numbers as paper
from tests.experiments.tiny_runs import ROOT

ROOT_RULE, PRINTED_RULE = evidence.RULES


def test_the_multipliers_of_the_first_figure_are_those_of_the_root_rule():
    found = evidence.readings(1.0)
    assert [reading.k for reading in found] == list(range(12, 20))
    assert found[0].y == pytest.approx(1075.673, abs=5e-4)
    assert found[0].predicted[ROOT_RULE] == pytest.approx(1075.673, abs=5e-4)
    assert found[0].predicted[PRINTED_RULE] == pytest.approx(214.373, abs=5e-4)
    steps = [reading.sigma for reading in found[:5]]
    assert steps == pytest.approx([2.7731, 2.6726, 2.5820, 2.5000, 2.4254], abs=5e-5)
    assert [reading.steps[ROOT_RULE] for reading in found] == pytest.approx(
        [10 / (k + 1) ** 0.5 for k in range(12, 20)], rel=1e-12
    )
    assert found[-1].sigma is None


@pytest.mark.parametrize(("nu", "tolerance"), [(1.0, 1e-6), (0.8, 1e-5), (0.6, 1e-4), (0.4, 2e-3)])
def test_every_power_agrees_with_the_root_rule_and_none_with_the_printed_one(nu, tolerance):
    """A smaller ν has looser subproblems, so that its first readings are less exact."""
    for reading in evidence.readings(nu):
        assert reading.predicted[ROOT_RULE] == pytest.approx(reading.y, rel=tolerance)
        assert reading.predicted[PRINTED_RULE] < 0.25 * reading.y


@pytest.mark.parametrize("nu", [0.4, 0.6, 0.8, 1.0])
def test_no_choice_of_signs_brings_the_printed_rule_to_the_multipliers(nu):
    violations = [value for _, value in paper.curves("gevp", "violation")[nu]]
    start, ends = violations[0], violations[1:]
    steps = [sigma for _, sigma in evidence._sequence("paper", nu, start, ends)]
    for reading in evidence.readings(nu):
        pairs = zip(steps[: reading.k - 1], ends, strict=False)
        assert sum(sigma * A**nu for sigma, A in pairs) < 0.8 * reading.y


def test_the_table_has_a_row_for_every_reading():
    rows = evidence.table()
    assert len(rows) == sum(len(evidence.readings(nu)) for nu in (0.4, 0.6, 0.8, 1.0))
    assert rows[0] == {
        "ν": "1",
        "k": "12",
        "y_k read off": "1075.673",
        "y_k, σ_1/√(k+1)": "1075.673",
        "y_k, Algorithm 1, line 3": "214.373",
        "σ_k read off": "2.7731",
        "σ_k, σ_1/√(k+1)": "2.7735",
        "σ_k, Algorithm 1, line 3": "10.0000",
    }


def test_the_page_for_the_authors_has_the_numbers_of_the_tables():
    page = " ".join((ROOT / "docs" / "paper_dual_step.md").read_text().split())
    found = evidence.readings(1.0)
    assert f"y_12 = {found[0].y:.3f}, y_13 = {found[1].y:.3f}, …" in page
    assert f"they give y_12 = {found[0].predicted[ROOT_RULE]:.3f}" in page
    assert f"Line 3 gives y_12 = {found[0].predicted[PRINTED_RULE]:.3f}" in page
    for steps in ([r.sigma for r in found[:5]], [r.steps[ROOT_RULE] for r in found[:5]]):
        assert ", ".join(f"{step:.4f}" for step in steps) in page
    values = note_values.values([])
    assert values["gevp_rows"] == "50 of 50"
    assert "all 50 rows of Table 3" in page
    for name, text in (("gevp_violation", "‖A‖ = {}"), ("gevp_gap", "|f − f*| = {}")):
        digits, exponent = values[name].split("e")
        power = exponent.lstrip("-0").translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        assert text.format(f"{digits} · 10⁻{power}") in page
    assert f"{values['double_multiples'].replace('of', 'of the')} counts of Table 1" in page
    assert f"{values['clustering_multiples'].replace('of', 'of the')} counts" in page
