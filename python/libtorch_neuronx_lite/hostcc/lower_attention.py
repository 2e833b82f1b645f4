# SPDX-License-Identifier: Apache-2.0
"""Attention as one step, on windows: repeated heads and a mask that many rows share cost no copy."""

from __future__ import annotations

from libtorch_neuronx_lite.hostcc.graph import Op, TensorType
from libtorch_neuronx_lite.hostcc.lowering import Lowering, handles
from libtorch_neuronx_lite.hostcc.rewrite_attention import ATTENTION
from libtorch_neuronx_lite.hostcc.windows import Window


@handles(ATTENTION)
def _attention(low: Lowering, op: Op) -> None:
    batch, groups, rows = op.attributes["shape"]
    query, key, value, scale, *mask = op.operands
    columns, width = low.type(key).shape[1:]
    inputs = [
        _shaped(low, query, (batch, groups, rows, width)),
        _shaped(low, key, (batch, columns, width)),
        _shaped(low, value, low.type(value).shape),
        low.window(scale),
        *(_shaped(low, operand, (batch, groups, rows, columns)) for operand in mask),
    ]
    shape = (batch, groups, rows, low.type(value).shape[2])
    target = _target(low, op)
    out = target.reshape(shape)
    if out is None:
        target = low.temporary(low.type(op.results[0]))
        out = target.reshape(shape)
        assert out is not None  # target is dense
    low.define(op.results[0], target)
    low.emit("attention", inputs, [out])


def _shaped(low: Lowering, value: int, shape: tuple[int, ...]) -> Window:
    """Return the value's elements in another shape: a window where strides express it, else a copy."""
    window = low.factored(value).window.reshape(shape)
    if window is None:
        window = low.dense_copy(low.window(value)).reshape(shape)
        assert window is not None  # a copy is dense
    return window


def _target(low: Lowering, op: Op) -> Window:
    """Return fresh memory for the result, in the order in which its reader wants it."""
    type_ = low.type(op.results[0])
    order = op.attributes.get("order")
    if order is None:
        return low.temporary(type_)
    turned = low.temporary(TensorType(tuple(type_.shape[dim] for dim in order), type_.dtype))
    return turned.transpose([order.index(dim) for dim in range(len(order))])
