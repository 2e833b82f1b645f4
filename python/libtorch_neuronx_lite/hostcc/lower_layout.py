# SPDX-License-Identifier: Apache-2.0
"""Ops that move or rename elements: windows where possible, copies where not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import COMPLEX, STORAGE, size_of
from libtorch_neuronx_lite.hostcc.graph import Op, refuse
from libtorch_neuronx_lite.hostcc.lowering import Factored, Lowering, handles
from libtorch_neuronx_lite.hostcc.windows import Window, common_factors, group_factors


@handles("stablehlo.transpose", view=True)
def _transpose(low: Lowering, op: Op) -> None:
    permutation = op.attributes["permutation"]
    if not low.is_factored(op.operands[0]):
        low.define(op.results[0], low.window(op.operands[0]).transpose(permutation))
        return
    source = low.factored(op.operands[0])
    order = [dim for position in permutation for dim in source.groups[position]]
    sizes = [len(source.groups[position]) for position in permutation]
    low.define_factored(op.results[0], Factored(source.window.transpose(order), _runs(sizes)))


def _runs(sizes: list[int]) -> tuple[tuple[int, ...], ...]:
    ends = list(itertools.accumulate(sizes))
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


@handles(
    "stablehlo.reshape",
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    view=True,
)
def _reshape(low: Lowering, op: Op) -> None:
    shape = low.type(op.results[0]).shape
    source = low.factored(op.operands[0])
    view = source.window.reshape(shape)
    if view is not None:
        low.define(op.results[0], view)
        return
    factors = common_factors(source.window.shape, shape)
    if factors is None:
        copy = low.window(op.operands[0])
        view = copy.reshape(shape) or low.dense_copy(copy).reshape(shape)
        assert view is not None
        low.define(op.results[0], view)
        return
    fine = source.window.split(group_factors(source.window.shape, factors))
    kept = tuple(size != 1 for size in fine.shape)
    fine = replace(
        fine,
        shape=tuple(size for size, keep in zip(fine.shape, kept, strict=True) if keep),
        strides=tuple(stride for stride, keep in zip(fine.strides, kept, strict=True) if keep),
    )
    groups = [tuple(size for size in group if size != 1) for group in group_factors(shape, factors)]
    low.define_factored(op.results[0], Factored(fine, _runs([len(group) for group in groups])))


@handles("stablehlo.broadcast_in_dim", view=True)
def _broadcast(low: Lowering, op: Op) -> None:
    window = low.window(op.operands[0])
    low.define(op.results[0], window.broadcast(low.type(op.results[0]).shape, op.attributes["broadcast_dimensions"]))


@handles("stablehlo.slice", view=True)
def _slice(low: Lowering, op: Op) -> None:
    window = low.window(op.operands[0])
    attributes = op.attributes
    low.define(
        op.results[0], window.slice(attributes["start_indices"], attributes["limit_indices"], attributes["strides"])
    )


@handles("stablehlo.real_dynamic_slice", view=True)
def _real_dynamic_slice(low: Lowering, op: Op) -> None:
    bounds = [low.constant_value(operand) for operand in op.operands[1:]]
    if any(bound is None for bound in bounds):
        raise refuse(low.graph, op, "its bounds are not known when the graph is compiled")
    starts, limits, steps = ([int(value) for value in bound] for bound in bounds if bound is not None)
    low.define(op.results[0], low.window(op.operands[0]).slice(starts, limits, steps))


@handles("stablehlo.bitcast_convert", view=True)
def _bitcast_convert(low: Lowering, op: Op) -> None:
    window, type_ = low.window(op.operands[0]), low.type(op.results[0])
    old, new = size_of(window.dtype), size_of(type_.dtype)
    if old < new:
        ratio = new // old  # the last dimension holds the parts of one new element
        fits = (
            window.strides[-1] == 1 and window.offset % ratio == 0 and all(s % ratio == 0 for s in window.strides[:-1])
        )
        if not fits:
            window = low.dense_copy(window)
        strides = tuple(stride // ratio for stride in window.strides[:-1])
        window = Window(window.storage, type_.dtype, type_.shape, strides, window.offset // ratio)
    elif old > new:
        ratio = old // new
        strides = (*(stride * ratio for stride in window.strides), 1)
        window = Window(window.storage, type_.dtype, type_.shape, strides, window.offset * ratio)
    else:
        window = replace(window, dtype=type_.dtype)
    low.define(op.results[0], window)


@handles("stablehlo.real", "stablehlo.imag", view=True)
def _complex_part(low: Lowering, op: Op) -> None:
    window, type_ = low.window(op.operands[0]), low.type(op.results[0])
    imaginary = op.name == "stablehlo.imag"
    if window.dtype in COMPLEX:
        strides = tuple(stride * 2 for stride in window.strides)
        window = Window(window.storage, type_.dtype, type_.shape, strides, window.offset * 2 + int(imaginary))
    elif imaginary:
        window = low.constant(np.broadcast_to(np.zeros((), STORAGE[type_.dtype]), type_.shape), type_.dtype)
    low.define(op.results[0], window)


@handles("stablehlo.concatenate")
def _concatenate(low: Lowering, op: Op) -> None:
    target = low.temporary(low.type(op.results[0]))
    dim, start = op.attributes["dimension"], 0
    for operand in op.operands:
        window = low.window(operand)
        part = _part(target, dim, start, window.shape[dim])
        if op.operands.count(operand) > 1 or not low.write_elsewhere(operand, part):
            low.emit("copy", [window], [part])
        start += window.shape[dim]
    low.define(op.results[0], target)


def _part(window: Window, dim: int, start: int, size: int) -> Window:
    starts, limits = [0] * len(window.shape), list(window.shape)
    starts[dim], limits[dim] = start, start + size
    return window.slice(starts, limits, [1] * len(window.shape))


@handles("stablehlo.pad", "stablehlo.dynamic_pad")
def _pad(low: Lowering, op: Op) -> None:
    window, fill = low.window(op.operands[0]), low.window(op.operands[1])
    if op.name == "stablehlo.dynamic_pad":
        bounds = [low.constant_value(operand) for operand in op.operands[2:]]
        if any(bound is None for bound in bounds):
            raise refuse(low.graph, op, "its padding is not known when the graph is compiled")
        lows, highs, interiors = ([int(value) for value in bound] for bound in bounds if bound is not None)
    else:
        attributes = op.attributes
        lows, highs = attributes["edge_padding_low"], attributes["edge_padding_high"]
        interiors = attributes["interior_padding"]
    target = low.temporary(low.type(op.results[0]))
    if any(lows) or any(highs) or any(interiors):
        low.emit("copy", [fill.broadcast(target.shape, [])], [target])
    # Element i of a dimension lands at low + i * step; negative padding cuts those that land outside.
    source_start, source_limit, starts, limits, steps = [], [], [], [], []
    for size, total, before, interior in zip(window.shape, target.shape, lows, interiors, strict=True):
        step = interior + 1
        first = max(0, -(before // step))  # the smallest i with before + i * step >= 0
        last = min(size, -((before - total) // step))  # the first i that lands at total or beyond
        last = max(first, last)
        source_start.append(first)
        source_limit.append(last)
        starts.append(before + first * step)
        limits.append(before + (last - 1) * step + 1 if last > first else before + first * step)
        steps.append(step)
    source = window.slice(source_start, source_limit, [1] * len(steps))
    if source.elements:
        low.emit("copy", [source], [target.slice(starts, limits, steps)])
    low.define(op.results[0], target)


@handles("stablehlo.iota")
def _iota(low: Lowering, op: Op) -> None:
    low.step(op, "iota", [], {"dim": op.attributes["iota_dimension"]})


@handles("stablehlo.reverse")
def _reverse(low: Lowering, op: Op) -> None:
    low.step(op, "reverse", [low.window(op.operands[0])], {"dims": op.attributes["dimensions"]})


@handles("stablehlo.complex")
def _complex(low: Lowering, op: Op) -> None:
    low.step(op, "complex", [low.window(operand) for operand in op.operands])
