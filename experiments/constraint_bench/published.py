"""Published numbers that a task can be compared with."""

from typing import NamedTuple

PLAIN = ("unconstrained", "recommended", "natural")
OURS = ("powalm", "recommended", "natural")


class Published(NamedTuple):
    """A published number and the runs to put beside it.

    Args:
        what: what it measures.
        source: where it was published.
        value: as published.
        key: task, method, setting and units of the runs.
        number: "merit", or a detail of the task.
        difference: what differs between the two experiments.
    """

    what: str
    source: str
    value: str
    key: tuple[str, str, str, str]
    number: str
    difference: str


SAMPLE = "complete data there; a sample of 4,000 rows without sex as a feature here"
PUBLISHED = (
    Published(
        "accuracy without constraints, Adult",
        "FFB (Han et al. 2024), ERM, gender",
        "0.8535",
        ("adult_parity", *PLAIN),
        "accuracy",
        SAMPLE,
    ),
    Published(
        "parity gap without constraints, Adult",
        "FFB (Han et al. 2024), ERM, gender",
        "0.167",
        ("adult_parity", *PLAIN),
        "parity_gap",
        SAMPLE,
    ),
    Published(
        "relative L2 error, Burgers rarefaction",
        "PECANN-CAPU (Hu et al. 2025)",
        "2.28e-2 ± 0.51e-2",
        ("pinn_burgers", *OURS),
        "merit",
        "a transonic rarefaction there; one from a ramp and 1,200 steps here (both 3 × 20 tanh)",
    ),
    Published(
        "relative L2 error, 1-D Poisson",
        "PECANN-CAPU (Hu et al. 2025)",
        "5.6e-4 to 1.1e-1, 5 seeds",
        ("pinn_poisson", *OURS),
        "merit",
        "another right-hand side and training; 1,200 steps of Adam here",
    ),
)
