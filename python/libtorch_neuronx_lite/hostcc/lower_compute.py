# SPDX-License-Identifier: Apache-2.0
"""Ops that compute new elements: elementwise, reductions, products, sorting, spectra, random bits."""

from __future__ import annotations

from typing import Any

from libtorch_neuronx_lite.hostcc.graph import Op, TensorType, refuse
from libtorch_neuronx_lite.hostcc.lowering import Lowering, handles
from libtorch_neuronx_lite.hostcc.regions import (
    argument_reduction,
    combine_kind,
    combine_kinds,
    is_identity,
    sort_order,
)
from libtorch_neuronx_lite.hostcc.step_names import CHLO_BINARY, CHLO_UNARY, STABLEHLO_BINARY, STABLEHLO_UNARY
from libtorch_neuronx_lite.hostcc.windows import Window


@handles(
    *(f"stablehlo.{name}" for name in [*STABLEHLO_UNARY, *STABLEHLO_BINARY]),
    *(f"chlo.{name}" for name in [*CHLO_UNARY, *CHLO_BINARY]),
)
def _elementwise(low: Lowering, op: Op) -> None:
    low.step(op, op.name.partition(".")[2], [low.window(operand) for operand in op.operands])


@handles("stablehlo.reduce_precision")
def _reduce_precision(low: Lowering, op: Op) -> None:
    bits = (op.attributes["exponent_bits"], op.attributes["mantissa_bits"])
    short = {(8, 7): "bf16", (5, 10): "f16"}.get(bits)
    type_ = low.type(op.results[0])
    if short is None or type_.dtype not in ("f32", short):
        raise refuse(
            low.graph, op, f"the format e{bits[0]}m{bits[1]} of {type_.dtype} is not one of e8m7 and e5m10 of f32"
        )
    rounded = low.temporary(TensorType(type_.shape, short))
    low.emit("convert", [low.window(op.operands[0])], [rounded])
    low.step(op, "convert", [rounded])


@handles("stablehlo.compare")
def _compare(low: Lowering, op: Op) -> None:
    dtype = low.type(op.operands[0]).dtype
    kind = op.attributes.get("compare_type", "NOTYPE")
    if kind == "NOTYPE":
        kind = "UNSIGNED" if dtype in ("bool", "u8", "u16", "u32", "u64") else "SIGNED" if dtype[0] == "i" else "FLOAT"
    low.step(
        op,
        "compare",
        [low.window(operand) for operand in op.operands],
        {"direction": op.attributes["comparison_direction"], "type": kind},
    )


@handles("stablehlo.select")
def _select(low: Lowering, op: Op) -> None:
    predicate, *values = (low.window(operand) for operand in op.operands)
    shape = low.type(op.results[0]).shape
    if predicate.shape != shape:
        predicate = predicate.broadcast(shape, [])
    low.step(op, "select", [predicate, *values])


@handles("stablehlo.clamp")
def _clamp(low: Lowering, op: Op) -> None:
    shape = low.type(op.results[0]).shape
    windows = [low.window(operand) for operand in op.operands]
    low.step(op, "clamp", [w if w.shape == shape else w.broadcast(shape, []) for w in windows])


@handles("stablehlo.convolution")
def _convolution(low: Lowering, op: Op) -> None:
    attributes = op.attributes
    numbers = attributes["dimension_numbers"]
    rank = len(numbers["input_spatial"])
    low.step(
        op,
        "convolution",
        [low.window(operand) for operand in op.operands],
        {
            "window_strides": attributes.get("window_strides", [1] * rank),
            "padding": attributes.get("padding", [[0, 0]] * rank),
            "lhs_dilation": attributes.get("lhs_dilation", [1] * rank),
            "rhs_dilation": attributes.get("rhs_dilation", [1] * rank),
            "window_reversal": [int(flag) for flag in attributes.get("window_reversal", [False] * rank)],
            "feature_group_count": attributes["feature_group_count"],
            "batch_group_count": attributes["batch_group_count"],
            **numbers,
        },
    )


@handles("stablehlo.reduce")
def _reduce(low: Lowering, op: Op) -> None:
    count = len(op.results)
    dims = op.attributes["dimensions"]
    operands, inits = op.operands[:count], op.operands[count:]
    kinds = combine_kinds(low.graph, op.regions[0])
    if kinds is not None:
        for operand, init, result, kind in zip(operands, inits, op.results, kinds, strict=True):
            target = low.temporary(low.type(result))
            attributes = {"dims": dims, "kind": kind}
            low.emit("reduce", [low.window(operand), low.window(init)], [target], attributes)
            low.define(result, target)
        return
    if count == 2 and len(dims) == 1:
        extreme = argument_reduction(low.graph, op)
        if extreme is not None:
            low.step(op, "argreduce", [low.window(operands[0])], {"dim": dims[0], "kind": extreme})
            return
    raise refuse(
        low.graph,
        op,
        "its body is neither one of add, multiply, maximum, minimum, and, or, xor per operand, nor an argmax or argmin "
        "over an iota",
    )


@handles("stablehlo.reduce_window")
def _reduce_window(low: Lowering, op: Op) -> None:
    count = len(op.results)
    kinds = combine_kinds(low.graph, op.regions[0])
    if kinds is None:
        raise refuse(low.graph, op, "its body is not one of add, multiply, maximum, minimum, and, or, xor per operand")
    for operand, init, result, kind in zip(op.operands[:count], op.operands[count:], op.results, kinds, strict=True):
        window, target = low.window(operand), low.temporary(low.type(result))
        attributes = _window_attributes(op, len(window.shape))
        scan = _cumulative(attributes, window, target)
        if scan is not None and kind in ("add", "multiply", "maximum", "minimum") and _is_identity(low, init, kind):
            low.emit("cumulative", [window], [target], {**scan, "kind": kind})
        else:
            low.emit("reduce_window", [window, low.window(init)], [target], {**attributes, "kind": kind})
        low.define(result, target)


def _window_attributes(op: Op, rank: int) -> dict[str, Any]:
    ones = [1] * rank
    return {
        "window_dimensions": op.attributes["window_dimensions"],
        "window_strides": op.attributes.get("window_strides", ones),
        "base_dilations": op.attributes.get("base_dilations", ones),
        "window_dilations": op.attributes.get("window_dilations", ones),
        "padding": op.attributes.get("padding", [[0, 0]] * rank),
    }


def _cumulative(attributes: dict[str, Any], window: Window, target: Window) -> dict[str, Any] | None:
    """Recognise a scan: along one dimension the window is as long as the data and hangs out on one side only."""
    if window.shape != target.shape:
        return None
    if any(n != 1 for key in ("window_strides", "base_dilations", "window_dilations") for n in attributes[key]):
        return None
    long = [dim for dim, size in enumerate(attributes["window_dimensions"]) if size != 1]
    if len(long) != 1:
        return None
    dim, size = long[0], attributes["window_dimensions"][long[0]]
    low_pad, high_pad = attributes["padding"][dim]
    if size != window.shape[dim] or sorted((low_pad, high_pad)) != [0, size - 1]:
        return None
    return {"dim": dim, "reverse": int(low_pad == 0)}


def _is_identity(low: Lowering, init: int, kind: str) -> bool:
    """Whether starting from `init` changes nothing, so that a scan may start from the first element."""
    value = low.constant_value(init)
    return value is not None and is_identity(value, low.type(init).dtype, kind)


@handles("stablehlo.sort")
def _sort(low: Lowering, op: Op) -> None:
    descending = sort_order(low.graph, op)
    if descending is None:
        raise refuse(low.graph, op, "its comparator does not order by the first operand alone, ascending or descending")
    # Stable always: eager's order of equal elements on the CPU is the stable one.
    low.step(
        op,
        "sort",
        [low.window(operand) for operand in op.operands],
        {
            "dim": op.attributes["dimension"] % len(low.type(op.operands[0]).shape),
            "stable": 1,
            "descending": int(descending),
        },
    )


@handles("chlo.top_k")
def _top_k(low: Lowering, op: Op) -> None:
    low.step(op, "top_k", [low.window(op.operands[0])], {"k": op.attributes["k"]})


@handles("stablehlo.fft")
def _fft(low: Lowering, op: Op) -> None:
    attributes = {"type": op.attributes["fft_type"], "length": op.attributes["fft_length"]}
    low.step(op, "fft", [low.window(op.operands[0])], attributes)


@handles("stablehlo.rng_bit_generator")
def _rng_bit_generator(low: Lowering, op: Op) -> None:
    low.step(op, "rng_bit_generator", [low.window(op.operands[0])], {"algorithm": op.attributes["rng_algorithm"]})


@handles("stablehlo.gather", "stablehlo.dynamic_gather")
def _gather(low: Lowering, op: Op) -> None:
    operand, indices = (low.window(value) for value in op.operands[:2])
    sizes = op.attributes.get("slice_sizes")
    if sizes is None:
        known = low.constant_value(op.operands[2])
        if known is None:
            raise refuse(low.graph, op, "its slice sizes are not known when the graph is compiled")
        sizes = [int(value) for value in known]
    low.step(op, "gather", [operand, indices], {**op.attributes["dimension_numbers"], "slice_sizes": sizes})


@handles("stablehlo.dynamic_slice")
def _dynamic_slice(low: Lowering, op: Op) -> None:
    low.step(op, "dynamic_slice", [low.window(operand) for operand in op.operands])


@handles("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(low: Lowering, op: Op) -> None:
    target = low.update_target(op, op.operands[0])
    update = low.window(op.operands[1])
    starts = [low.constant_value(operand) for operand in op.operands[2:]]
    if all(start is not None for start in starts):
        begin = [
            min(max(int(start.reshape(())), 0), size - part)
            for start, size, part in zip((s for s in starts if s is not None), target.shape, update.shape, strict=True)
        ]
        end = [first + part for first, part in zip(begin, update.shape, strict=True)]
        low.emit("copy", [update], [target.slice(begin, end, [1] * len(begin))])
    else:
        windows = [low.window(operand) for operand in op.operands[1:]]
        if update.elements:
            low.emit("dynamic_update_slice", windows, [target], updates=True)
    low.define(op.results[0], target)


@handles("stablehlo.scatter")
def _scatter(low: Lowering, op: Op) -> None:
    count = len(op.results)
    targets, indices, updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
    kinds = ["update"] if count == 1 and combine_kind(low.graph, op.regions[0], 0) == "update" else None
    kinds = kinds or combine_kinds(low.graph, op.regions[0])
    if kinds is None or any(kind not in ("update", "add", "multiply", "maximum", "minimum") for kind in kinds):
        raise refuse(low.graph, op, "its body is not one of update, add, multiply, maximum, minimum per operand")
    for operand, update, result, kind in zip(targets, updates, op.results, kinds, strict=True):
        target = low.update_target(op, operand)
        if low.window(update).elements:
            low.emit(
                "scatter",
                [low.window(indices), low.window(update)],
                [target],
                {"kind": kind, **op.attributes["scatter_dimension_numbers"]},
                updates=True,
            )
        low.define(result, target)
