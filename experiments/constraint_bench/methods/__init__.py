"""The methods, one file for each library; each has settings by name, "recommended" first.

Peers are imported only when they run, so that ours and the penalties need none of them.
"""

from experiments.constraint_bench.method import Method
from experiments.constraint_bench.methods import (
    cooper_methods,
    humancompatible_methods,
    mdmm_methods,
    plain_methods,
    powalm_method,
)

METHODS: dict[str, dict[str, Method]] = {
    **powalm_method.SETTINGS,
    **plain_methods.SETTINGS,
    **cooper_methods.SETTINGS,
    **humancompatible_methods.SETTINGS,
    **mdmm_methods.SETTINGS,
}
