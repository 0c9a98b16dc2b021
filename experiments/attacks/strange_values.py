"""Values that may stand where a state expects another one."""

import enum
import math
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import torch


class Stranger:
    """An object that no state holds."""


class Level(enum.IntEnum):
    """An integer of another type."""

    ONE = 1


class Number(float):
    """A number of another type."""


def _within_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append({"a": loop})
    return loop


def _deep(levels: int) -> Any:
    value: Any = 1.0
    for _ in range(levels):
        value = [value]
    return value


CONSTANTS: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "zero": 0,
    "zero float": 0.0,
    "minus one": -1,
    "minus half": -0.5,
    "huge": 1e300,
    "tiny": 1e-310,
    "huge integer": 10**400,
    "large integer": 2**60,
    "true": True,
    "none": None,
    "word": "abc",
    "bytes": b"abc",
    "list": [],
    "mapping": {},
    "nested": {"a": [1, {"b": None}]},
    "complex": 1j,
    "object": Stranger(),
    "scalar tensor": torch.tensor(1.0),
    "integer tensor": torch.tensor([1, 2]),
    "empty tensor": torch.empty(0),
    "number as a word": "1.0",
    "big integer": 2**31,
    "minus zero": -0.0,
    "nested nan": [{"a": (math.nan,)}],
    "generator": torch.Generator(),
    "data type": torch.float64,
    "function": print,
    "array": numpy.zeros(3),
    "scalar array": numpy.float64(0.5),
    "set": {1, 2},
    "numpy integer": numpy.int64(3),
    "numpy truth": numpy.bool_(True),
    "numpy single": numpy.float32(0.5),
    "decimal": Decimal("0.5"),
    "fraction": Fraction(1, 2),
    "enumeration": Level.ONE,
    "number of another type": Number(0.5),
    "size": torch.Size([2]),
    "range": range(3),
    "default mapping": defaultdict(float),
    "within itself": _within_itself(),
    "deep": _deep(400),
    "truth tensor": torch.tensor(True),
    "integer tensor without dimensions": torch.tensor(2),
    "nan tensor": torch.tensor(math.nan, dtype=torch.float64),
    "negative tensor": torch.tensor(-1.0),
    "word of digits": "7",
    "one": 1,
    "one float": 1.0,
    "seven": 7,
    "subnormal": 5e-324,
    "largest": 1.7e308,
}
