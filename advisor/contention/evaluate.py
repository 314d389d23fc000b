"""Values and slopes of metric expressions, for one node or for arrays of nodes at once.

Semantics are perf's: comparisons give 0 or 1, bit operators work on whole numbers, `d_ratio` of anything
by zero is 0, and any other division by zero has no value (NaN). Slopes are carried
forward beside values (dual numbers), which is what the counter correction linearises with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from advisor.contention.expression import (
    Binary,
    Call,
    Choice,
    Constant,
    Expression,
    Name,
    Negative,
    Number,
    Query,
)

Values = NDArray[np.float64]


class EvaluationError(ValueError):
    """A name or a constant that the expression needs has no value here."""


@dataclass(frozen=True)
class Machine:
    """What `#constants` and questions about names are answered from; a two-socket SMT server unless told."""

    constants: Mapping[str, float] = field(
        default_factory=lambda: {
            "smt_on": 1.0,
            "core_wide": 0.0,
            "num_cpus": 64.0,
            "num_cpus_online": 64.0,
            "num_cores": 32.0,
            "num_dies": 2.0,
            "num_packages": 2.0,
            "system_tsc_freq": 2.4e9,
            "slots": 8.0,
        }
    )
    sources: Mapping[str, float] = field(default_factory=dict)  # event → PMUs that count it; 1 unless told
    events: frozenset[str] | None = None  # what the PMU knows; None: everything
    cpuid: str = ""

    def constant(self, name: str) -> float:
        """The value of `#name`."""
        if name not in self.constants:
            known = ", ".join(f"#{key}" for key in sorted(self.constants))
            raise EvaluationError(f"#{name} has no value on this machine; known: {known}")
        return self.constants[name]

    def answer(self, function: str, name: str) -> float:
        """The value of `source_count(name)`, `has_event(name)` or `strcmp_cpuid_str(name)`."""
        if function == "source_count":
            return self.sources.get(name, 1.0)
        if function == "has_event":
            return float(self.events is None or name in self.events)
        return float(self.cpuid == name)


def evaluate(tree: Expression, values: Mapping[str, Values | float], machine: Machine) -> Values:
    """The value of an expression; arrays in `values` broadcast against each other."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _value(tree, values, machine)


def _value(tree: Expression, values: Mapping[str, Values | float], machine: Machine) -> Values:
    match tree:
        case Number(number):
            return np.asarray(number, dtype=np.float64)
        case Name(name):
            if name not in values:
                raise EvaluationError(f"no value for {name}; measure it, or leave out what needs it")
            return np.asarray(values[name], dtype=np.float64)
        case Constant(name):
            return np.asarray(machine.constant(name), dtype=np.float64)
        case Query(function, name):
            return np.asarray(machine.answer(function, name), dtype=np.float64)
        case Negative(operand):
            return -_value(operand, values, machine)
        case Binary(operator, left, right):
            return _BINARY[operator](_value(left, values, machine), _value(right, values, machine))
        case Call(function, left, right):
            return _BINARY[function](_value(left, values, machine), _value(right, values, machine))
        case Choice(condition, then, otherwise):
            return np.where(
                _value(condition, values, machine) != 0,
                _value(then, values, machine),
                _value(otherwise, values, machine),
            )


def _flag(condition: NDArray[np.bool_]) -> Values:
    return np.asarray(condition, dtype=np.float64)


def _divide(left: Values, right: Values) -> Values:
    return np.where(right == 0, np.nan, left / np.where(right == 0, 1.0, right))


def _remainder(left: Values, right: Values) -> Values:
    return np.where(right == 0, np.nan, np.fmod(left, np.where(right == 0, 1.0, right)))


def _d_ratio(left: Values, right: Values) -> Values:
    return np.where(right == 0, 0.0, left / np.where(right == 0, 1.0, right))


def _bits(operation: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]) -> _Binary:
    def apply(left: Values, right: Values) -> Values:
        return np.asarray(operation(left.astype(np.int64), right.astype(np.int64)), dtype=np.float64)

    return apply


_Binary = Callable[[Values, Values], Values]
_BINARY: dict[str, _Binary] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": _remainder,
    "<": lambda a, b: _flag(a < b),
    ">": lambda a, b: _flag(a > b),
    "|": _bits(np.bitwise_or),
    "&": _bits(np.bitwise_and),
    "^": _bits(np.bitwise_xor),
    "min": lambda a, b: np.where(a < b, a, b),
    "max": lambda a, b: np.where(a > b, a, b),
    "d_ratio": _d_ratio,
}

Slopes = dict[str, Values]


def linearise(
    tree: Expression,
    values: Mapping[str, Values | float],
    machine: Machine,
    inner: Mapping[str, Slopes] | None = None,
) -> tuple[Values, Slopes]:
    """The value and its partial derivative by each name, at `values`. Steps and bits count as flat.

    A name in `inner` is itself a function: its slopes are passed through, so that the result is by what it uses.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _dual(tree, values, machine, inner or {})


def _dual(
    tree: Expression,
    values: Mapping[str, Values | float],
    machine: Machine,
    inner: Mapping[str, Slopes],
) -> tuple[Values, Slopes]:
    match tree:
        case Name(name):
            slopes = inner[name] if name in inner else {name: np.asarray(1.0)}
            return _value(tree, values, machine), slopes
        case Negative(operand):
            value, slopes = _dual(operand, values, machine, inner)
            return -value, {name: -slope for name, slope in slopes.items()}
        case Choice(condition, then, otherwise):
            chosen = _value(condition, values, machine) != 0
            if chosen.all() or not chosen.any():
                # Most conditions ask about the machine and are the same for every node.
                return _dual(then if chosen.all() else otherwise, values, machine, inner)
            a, da = _dual(then, values, machine, inner)
            b, db = _dual(otherwise, values, machine, inner)
            return np.where(chosen, a, b), _mix(da, db, _flag(chosen), _flag(~chosen))
        case Binary(operator, left, right) | Call(operator, left, right):
            a, da = _dual(left, values, machine, inner)
            b, db = _dual(right, values, machine, inner)
            value = _BINARY[operator](a, b)
            by_left, by_right = _partials(operator, a, b)
            return value, _mix(da, db, by_left, by_right)
        case _:
            return _value(tree, values, machine), {}


def _partials(operator: str, a: Values, b: Values) -> tuple[Values, Values]:
    one, zero = np.ones(()), np.zeros(())
    match operator:
        case "+":
            return one, one
        case "-":
            return one, -one
        case "*":
            return b, a
        case "/" | "d_ratio":
            safe = np.where(b == 0, 1.0, b)
            known = _flag(b != 0)
            return known / safe, -known * a / (safe * safe)
        case "min":
            return _flag(a < b), _flag(a >= b)
        case "max":
            return _flag(a > b), _flag(a <= b)
        case "%":
            return one, -np.trunc(a / np.where(b == 0, 1.0, b))
        case _:
            return zero, zero


def _mix(da: Slopes, db: Slopes, by_left: Values, by_right: Values) -> Slopes:
    mixed = {name: slope * by_left for name, slope in da.items()}
    for name, slope in db.items():
        share = slope * by_right
        mixed[name] = mixed[name] + share if name in mixed else share
    return mixed
