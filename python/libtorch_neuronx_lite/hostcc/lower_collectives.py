# SPDX-License-Identifier: Apache-2.0
"""Collectives: dense pieces in, dense pieces out; any other dimension than the first is a matter of windows."""

from __future__ import annotations

from typing import Any

from libtorch_neuronx_lite.hostcc.dtypes import COMPLEX
from libtorch_neuronx_lite.hostcc.graph import Op, TensorType, refuse
from libtorch_neuronx_lite.hostcc.lowering import Lowering, handles
from libtorch_neuronx_lite.hostcc.regions import combine_kind
from libtorch_neuronx_lite.hostcc.windows import Window

# What StableHLO's arithmetic on i1 amounts to.
_ON_BOOLS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}


def _attributes(low: Lowering, op: Op, **more: Any) -> dict[str, Any]:
    """Return the attributes of a step: who takes part, and what the op adds."""
    return {"groups": _groups(low, op), "replicas": low.graph.replicas, **more}


def _groups(low: Lowering, op: Op) -> list[list[int]]:
    """Return the replica groups; -1 fills up short ones, and no groups at all are one of every replica."""
    groups = [[rank for rank in group if rank >= 0] for group in op.attributes["replica_groups"]]
    groups = [group for group in groups if group] or [list(range(low.graph.replicas))]
    ranks = [rank for group in groups for rank in group]
    if len(set(ranks)) != len(ranks) or max(ranks) >= low.graph.replicas:
        raise refuse(
            low.graph,
            op,
            f"replica groups {groups} name a replica twice, or one outside the {low.graph.replicas} of the module's"
            " mhlo.num_replicas",
        )
    if len({len(group) for group in groups}) != 1:
        raise refuse(low.graph, op, f"replica groups {groups} are not of one size")
    return groups


def _kind(low: Lowering, op: Op, result: int) -> str:
    kind = combine_kind(low.graph, op.regions[0], result)
    dtype = low.type(op.results[result]).dtype
    if kind is None or kind == "update":
        raise refuse(low.graph, op, "its body is none of add, multiply, maximum, minimum, and, or, xor of two scalars")
    if dtype in COMPLEX or dtype.startswith("f8"):
        raise refuse(low.graph, op, f"collectives do not reduce {dtype}; convert to f32 first")
    return _ON_BOOLS.get(kind, kind) if dtype == "bool" else kind


def _dense(low: Lowering, window: Window) -> Window:
    return window if window.is_dense else low.dense_copy(window)


def _pieces(low: Lowering, window: Window, dim: int, count: int) -> Window:
    """Return a dense window whose first dimension counts the pieces that `dim` is cut into."""
    factors = [(size,) for size in window.shape[:dim]] + [(count, window.shape[dim] // count)]
    factors += [(size,) for size in window.shape[dim + 1 :]]
    cut = window.split(factors)  # type: ignore[arg-type]
    order = [dim, *range(dim), *range(dim + 1, len(cut.shape))]
    return _dense(low, cut.transpose(order))


def _define_joined(low: Lowering, value: int, pieces: Window, dim: int) -> None:
    """Say that a result is the pieces, which the first dimension counts, put together along `dim`."""
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(pieces.shape))]
    joined = pieces.transpose(order)
    shape = low.type(value).shape
    window = joined.reshape(shape) or low.dense_copy(joined).reshape(shape)
    assert window is not None
    low.define(value, window)


def _emit(low: Lowering, name: str, source: Window, shape: tuple[int, ...], attributes: dict[str, Any]) -> Window:
    output = low.temporary(TensorType(shape, source.dtype))
    low.emit(name, [source], [output], attributes)
    return output


@handles("stablehlo.all_reduce")
def _all_reduce(low: Lowering, op: Op) -> None:
    for position, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
        attributes = _attributes(low, op, kind=_kind(low, op, position))
        source = _dense(low, low.window(operand))
        low.define(result, _emit(low, "all_reduce", source, source.shape, attributes))


@handles("stablehlo.all_gather")
def _all_gather(low: Lowering, op: Op) -> None:
    groups = _groups(low, op)
    for operand, result in zip(op.operands, op.results, strict=True):
        source = _dense(low, low.window(operand))
        pieces = _emit(low, "all_gather", source, (len(groups[0]), *source.shape), _attributes(low, op))
        _define_joined(low, result, pieces, op.attributes["all_gather_dim"])


@handles("stablehlo.reduce_scatter")
def _reduce_scatter(low: Lowering, op: Op) -> None:
    groups = _groups(low, op)
    (operand,), (result,) = op.operands, op.results
    source = _pieces(low, low.window(operand), op.attributes["scatter_dimension"], len(groups[0]))
    output = low.temporary(low.type(result))
    low.define(result, output)
    piece = output.reshape(source.shape[1:])
    # The piece has its dimensions in the order of the result, because the cut one moved to the front whole.
    assert piece is not None
    low.emit("reduce_scatter", [source], [piece], _attributes(low, op, kind=_kind(low, op, 0)))


@handles("stablehlo.all_to_all")
def _all_to_all(low: Lowering, op: Op) -> None:
    groups = _groups(low, op)
    if op.attributes["split_count"] != len(groups[0]):
        raise refuse(low.graph, op, f"split_count {op.attributes['split_count']} in groups of {len(groups[0])}")
    for operand, result in zip(op.operands, op.results, strict=True):
        source = _pieces(low, low.window(operand), op.attributes["split_dimension"], len(groups[0]))
        pieces = _emit(low, "all_to_all", source, source.shape, _attributes(low, op))
        _define_joined(low, result, pieces, op.attributes["concat_dimension"])


@handles("stablehlo.collective_broadcast")
def _broadcast(low: Lowering, op: Op) -> None:
    source = _dense(low, low.window(op.operands[0]))
    low.define(op.results[0], _emit(low, "collective_broadcast", source, source.shape, _attributes(low, op)))
