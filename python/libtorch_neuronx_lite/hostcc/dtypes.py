# SPDX-License-Identifier: Apache-2.0
"""Element types: the program file's names, their sizes, and how NumPy holds and computes with them.

NumPy has no bf16 and no 8-bit floats. Constants of those types are held as unsigned integers of the same width; the
tables here widen them to float32 and round back to nearest, ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Program file name -> the NumPy type that holds the bits.
STORAGE: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "i64": np.dtype(np.int64),
    "u64": np.dtype(np.uint64),
    "bf16": np.dtype(np.uint16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8e4m3fn": np.dtype(np.uint8),
    "f8e5m2": np.dtype(np.uint8),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}

# MLIR spelling -> program file name. MLIR's signless integers are signed here, as in StableHLO.
FROM_MLIR: dict[str, str] = {
    "i1": "bool",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "index": "i64",
    "ui8": "u8",
    "ui16": "u16",
    "ui32": "u32",
    "ui64": "u64",
    "si8": "i8",
    "si16": "i16",
    "si32": "i32",
    "si64": "i64",
    "bf16": "bf16",
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
    "f8E4M3FN": "f8e4m3fn",
    "f8E5M2": "f8e5m2",
    "complex<f32>": "c64",
    "complex<f64>": "c128",
}

FLOATS = frozenset({"bf16", "f16", "f32", "f64", "f8e4m3fn", "f8e5m2"})
COMPLEX = frozenset({"c64", "c128"})
UNSIGNED = frozenset({"u8", "u16", "u32", "u64"})
# Types whose every value a wider one holds exactly: a round trip through it is the identity.
_EXACT_IN: dict[str, frozenset[str]] = {
    "bf16": frozenset({"f32", "f64"}),
    "f16": frozenset({"f32", "f64"}),
    "f8e4m3fn": frozenset({"bf16", "f16", "f32", "f64"}),
    "f8e5m2": frozenset({"bf16", "f16", "f32", "f64"}),
    "f32": frozenset({"f64"}),
    "bool": frozenset(STORAGE) - {"bool"},
    "i8": frozenset({"i16", "i32", "i64", "bf16", "f16", "f32", "f64"}),
    "u8": frozenset({"u16", "u32", "u64", "i16", "i32", "i64", "bf16", "f16", "f32", "f64"}),
    "i16": frozenset({"i32", "i64", "f32", "f64"}),
    "u16": frozenset({"u32", "u64", "i32", "i64", "f32", "f64"}),
    "i32": frozenset({"i64", "f64"}),
    "u32": frozenset({"u64", "i64", "f64"}),
}


def size_of(dtype: str) -> int:
    """Return the bytes of one element."""
    return STORAGE[dtype].itemsize


def holds_exactly(wide: str, narrow: str) -> bool:
    """Return whether every value of `narrow` is a value of `wide`."""
    return wide in _EXACT_IN.get(narrow, frozenset())


def _float8_table(exponent_bits: int, mantissa_bits: int, bias: int, *, finite_only: bool) -> Array:
    table = np.empty(256, np.float32)
    top = (1 << exponent_bits) - 1
    for bits in range(256):
        sign = -1.0 if bits & 0x80 else 1.0
        exponent = bits >> mantissa_bits & top
        mantissa = bits & ((1 << mantissa_bits) - 1)
        if finite_only and bits & 0x7F == 0x7F:
            value = float("nan")
        elif not finite_only and exponent == top:
            value = float("inf") if mantissa == 0 else float("nan")
        elif exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        table[bits] = sign * value
    return table


_FLOAT8 = {
    "f8e4m3fn": _float8_table(4, 3, 7, finite_only=True),
    "f8e5m2": _float8_table(5, 2, 15, finite_only=False),
}


def to_numeric(bits: Array, dtype: str) -> Array:
    """Return `bits`, the storage form of `dtype`, as an array that NumPy computes with (float32 for short floats)."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype in _FLOAT8:
        return _FLOAT8[dtype][bits]
    if dtype == "f16":
        return bits.astype(np.float32)
    return bits


def from_numeric(values: Array, dtype: str) -> Array:
    """Return `values` rounded once to `dtype`, in storage form. Integers wrap, as StableHLO's arithmetic does."""
    storage = STORAGE[dtype]
    if dtype == "bf16":
        # Not through float32 for float64: that would round twice.
        return _round_to_bf16(values)
    if dtype in _FLOAT8:
        return _round_to_float8(np.asarray(values, np.float64), dtype)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(storage)


def _round_to_bf16(values: Array) -> Array:
    if values.dtype == np.float64:
        single = values.astype(np.float32)
        # Round to odd, so that the second rounding sees which side of a tie the exact value lies on.
        bits = single.view(np.uint32)
        inexact = np.isfinite(single) & (single.astype(np.float64) != values)
        beyond = np.abs(single.astype(np.float64)) > np.abs(values)
        toward_zero = bits - beyond.astype(np.uint32)
        single = np.where(inexact, toward_zero | 1, bits).astype(np.uint32).view(np.float32)
    else:
        single = np.asarray(values).astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32).reshape(np.shape(values))
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(single), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _round_to_float8(values: Array, dtype: str) -> Array:
    table = _FLOAT8[dtype].astype(np.float64)
    positive = table[:128]
    finite = positive[np.isfinite(positive)]
    magnitude = np.abs(values)
    high = np.clip(np.searchsorted(finite, magnitude), 1, len(finite) - 1)
    low = high - 1
    middle = (finite[low] + finite[high]) / 2
    code = np.where((magnitude > middle) | ((magnitude == middle) & (low % 2 == 1)), high, low)
    # Beyond the largest finite value by half a step or more: infinity for e5m2; e4m3fn has none and stays at its
    # largest value, as in PyTorch.
    limit = finite[-1] + (finite[-1] - finite[-2]) / 2
    if dtype == "f8e5m2":
        code = np.where(magnitude >= limit, 0x7C, code)
    else:
        code = np.where(magnitude > finite[-1], len(finite) - 1, code)
    code = np.where(np.isnan(values), 0x7F, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
