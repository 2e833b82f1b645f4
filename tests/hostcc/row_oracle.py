# SPDX-License-Identifier: Apache-2.0
"""The steps `attention` and `fused` of docs/host-program.md in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import from_numeric, to_numeric

Array = np.ndarray[Any, Any]


def attention(numbers: list[Array], mask: Array | None, dtype: str) -> Array:
    """Softmax over the last dimension of f32 scores; weights are rounded to `dtype` before they meet the values."""
    query, key, value, scale = (number.astype(np.float32) for number in numbers[:4])
    scores = np.einsum("bgrw,bcw->bgrc", query, key) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    top = scores.max(-1, keepdims=True)
    if mask is not None:
        top = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - top).astype(np.float32)
    total = weights.sum(-1, keepdims=True)
    if mask is not None:
        total = np.where(total == 0, 1, total)
    rounded = to_numeric(from_numeric(weights, dtype), dtype)
    return np.asarray(np.einsum("bgrc,bcv->bgrv", rounded, value) / total)


def fused(
    numbers: list[Array],
    attributes: dict[str, Any],
    outs: list[Array],
    out_types: list[str],
    unary: Callable[[str, Array], Array],
    binary: Callable[[str, Array, Array], Array],
) -> list[Array]:
    """Run the chain; every operation rounds to the dtype that it names."""
    values = list(numbers)
    types: list[str] = [""] * len(numbers)
    length = max(array.shape[-1] for array in (*numbers, *outs))
    for name, dtype, *operands in attributes["program"]:
        reads = [values[position] for position in operands]
        if name in ("sum", "max"):
            row = np.broadcast_to(reads[0], (*reads[0].shape[:-1], length))
            result = (np.sum if name == "sum" else np.max)(row, axis=-1, keepdims=True)
        elif name == "convert":
            result = reads[0]
        elif len(reads) == 1:
            result = unary(name, reads[0]) if name != "erf" else np.vectorize(math.erf)(reads[0])
        else:
            result = binary(name, *reads)
        values.append(to_numeric(from_numeric(np.asarray(result), dtype), dtype))
        types.append(dtype)
    for position, dtype in zip(attributes["results"], out_types, strict=True):
        assert types[position] == dtype, "a result has another dtype than its output"
    shapes = [output.shape for output in outs]
    return [
        from_numeric(np.broadcast_to(values[position], shape), types[position])
        for position, shape in zip(attributes["results"], shapes, strict=True)
    ]
