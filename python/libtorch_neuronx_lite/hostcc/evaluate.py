# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops on constants, with StableHLO's rules: used to fold constants and to read bodies of reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import COMPLEX, FLOATS, STORAGE, Array, from_numeric, size_of, to_numeric
from libtorch_neuronx_lite.hostcc.graph import Op, TensorType

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    # Toward zero; by zero all bits are set, and the lowest integer by -1 is itself.
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    quotient = np.floor_divide(a, safe)
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b))).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    magnitude = np.power(a, np.where(b < 0, 0, b).astype(a.dtype))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, inverse, magnitude).astype(a.dtype)


def _round_half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": _logistic,
    "negate": np.negative,
    "not": np.invert,
    "round_nearest_afz": _round_half_away,
    "round_nearest_even": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),  # a zero keeps its sign
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": _remainder,
    "power": _power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_LOGICAL = {"add": np.logical_or, "multiply": np.logical_and}  # on booleans
_OTHER = frozenset({"compare", "convert", "select", "clamp", "bitcast_convert", "reshape"})


def can_evaluate(name: str) -> bool:
    """Return whether `evaluate` knows the op."""
    dialect, _, short = name.partition(".")
    return dialect == "stablehlo" and (short in _UNARY or short in _BINARY or short in _OTHER)


def _convert(value: Array, source: str, target: str) -> Array:
    numeric = to_numeric(value, source)
    if target == "bool":
        return np.asarray(numeric != 0)
    if target in COMPLEX or target in FLOATS:
        return from_numeric(np.real(numeric) if target in FLOATS else numeric, target)
    if source in FLOATS:
        # Out of range saturates and NaN is 0, as the kernels do.
        limits = np.iinfo(STORAGE[target])
        wide = np.nan_to_num(np.trunc(numeric.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = (wide >= float(limits.min)) & (wide < float(limits.max) + 1)
        result = np.where(inside, wide, 0).astype(STORAGE[target])
        return np.where(inside, result, np.where(wide < 0, limits.min, limits.max)).astype(STORAGE[target])
    return from_numeric(np.real(numeric), target)


def evaluate(op: Op, operands: list[Array], types: list[TensorType], result: TensorType) -> Array:
    """Return the result of an elementwise op in storage form. Operands may be broadcast against each other."""
    name = op.name.partition(".")[2]
    if name == "reshape":
        return operands[0]
    if name == "select":
        return np.where(operands[0], operands[1], operands[2])
    if name == "bitcast_convert":
        if size_of(types[0].dtype) != size_of(result.dtype):
            raise ValueError("bitcast_convert between sizes is not elementwise")
        return np.ascontiguousarray(operands[0]).view(STORAGE[result.dtype]).reshape(operands[0].shape)
    with np.errstate(all="ignore"):
        if name == "convert":
            return _convert(operands[0], types[0].dtype, result.dtype)
        numbers = [to_numeric(operand, type_.dtype) for operand, type_ in zip(operands, types, strict=True)]
        if name == "compare":
            return _compare(numbers, op.attributes)
        values: Any
        if name == "clamp":
            values = np.minimum(np.maximum(numbers[1], numbers[0]), numbers[2])
        elif name in _UNARY:
            values = _UNARY[name](numbers[0])
        elif types[0].dtype == "bool" and name in _LOGICAL:
            values = _LOGICAL[name](numbers[0], numbers[1])
        else:
            values = _BINARY[name](numbers[0], numbers[1])
    return from_numeric(values, result.dtype)


def _compare(numbers: list[Array], attributes: dict[str, Any]) -> Array:
    left, right = numbers
    if attributes.get("compare_type") == "TOTALORDER":
        left, right = _total_order(left), _total_order(right)
    return _COMPARE[attributes["comparison_direction"]](left, right)


def _total_order(value: Array) -> Array:
    """Map floats to integers that order as IEEE 754's totalOrder: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    signed = np.int64 if value.dtype == np.float64 else np.int32
    bits: Array = np.ascontiguousarray(value).view(signed).reshape(value.shape)
    return np.where(bits < 0, bits ^ np.iinfo(signed).max, bits)
