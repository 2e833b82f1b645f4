# SPDX-License-Identifier: Apache-2.0
"""Scatters with fewer, wider windows.

``cache[:, :, positions] = update`` reaches StableHLO as a scatter of single elements: every element of the update
carries four indices, three of which only count along a dimension. Such a column says "all of this dimension", which is
what a window dimension says without any index; the scatter then moves rows, and its index is `positions` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from libtorch_neuronx_lite.hostcc.evaluate import can_evaluate
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, TensorType

_DEPTH = 12  # producers looked through; index arithmetic of a frontend is shorter


@dataclass(slots=True)
class _Column:
    """One coordinate of the scatter's indices: a value of their shape with one element along the index vector."""

    value: int
    operand_dim: int
    batch: int | None = None  # the batch dimension it counts along, when it names all of `operand_dim`


def narrow_scatter(graph: Graph, op: Op, made_by: Mapping[int, Op]) -> list[Op]:
    """Turn columns that count along a whole dimension into window dimensions, in place.

    Returns the ops that must run before `op`; empty when nothing changed.
    """
    numbers = op.attributes["scatter_dimension_numbers"]
    count = len(op.results)
    target, indices, updates = graph.types[op.operands[0]], op.operands[count], op.operands[count + 1 :]
    index_type = graph.types[indices]
    rank = len(index_type.shape)
    if numbers["index_vector_dim"] != rank - 1 or numbers["input_batching_dims"]:
        return []
    maker = made_by.get(indices)
    if maker is None or maker.name != "stablehlo.concatenate" or maker.attributes["dimension"] != rank - 1:
        return []
    if any(graph.types[operand].shape[-1] != 1 for operand in maker.operands):
        return []
    columns = [
        _Column(value, dim) for value, dim in zip(maker.operands, numbers["scatter_dims_to_operand_dims"], strict=True)
    ]
    _find_whole_dimensions(graph, columns, target, numbers["inserted_window_dims"], made_by)
    kept = [column for column in columns if column.batch is None]
    if not kept:  # all of the operand: leave one column, the op needs an index
        columns[-1].batch = None
        kept = columns[-1:]
    if len(kept) == len(columns):
        return []

    # Dimensions of the updates: scatter dimensions stand for the indices' batch dimensions, in order.
    update_rank = len(graph.types[updates[0]].shape)
    scatter_dims = [dim for dim in range(update_rank) if dim not in numbers["update_window_dims"]]
    window_dims = [dim for dim in range(len(target.shape)) if dim not in numbers["inserted_window_dims"]]
    update_dim_of = dict(zip(window_dims, numbers["update_window_dims"], strict=True))
    widened = {column.operand_dim: column.batch for column in columns if column.batch is not None}
    update_dim_of.update({dim: scatter_dims[batch] for dim, batch in widened.items()})
    gone = set(widened.values())
    left = [dim for batch, dim in enumerate(scatter_dims) if batch not in gone]
    order = left + [update_dim_of[dim] for dim in sorted(update_dim_of)]

    before: list[Op] = []
    new_updates = [_transpose(graph, value, order, op, before) for value in updates]
    new_indices = _join(graph, [column.value for column in kept], gone, op, before)
    op.operands = [*op.operands[:count], new_indices, *new_updates]
    op.attributes = {
        **op.attributes,
        "scatter_dimension_numbers": {
            "update_window_dims": list(range(len(left), update_rank)),
            "inserted_window_dims": [dim for dim in numbers["inserted_window_dims"] if dim not in widened],
            "input_batching_dims": [],
            "scatter_indices_batching_dims": [],
            "scatter_dims_to_operand_dims": [column.operand_dim for column in kept],
            "index_vector_dim": len(left),
        },
    }
    return before


def _find_whole_dimensions(
    graph: Graph, columns: list[_Column], target: TensorType, inserted: list[int], made_by: Mapping[int, Op]
) -> None:
    used: set[int] = set()
    for column in columns:
        known = graph.constants.get(column.value)
        if known is None or column.operand_dim not in inserted:
            continue
        for batch, size in enumerate(known.shape[:-1]):
            if batch in used or size != target.shape[column.operand_dim]:
                continue
            line = np.arange(size).reshape([-1 if dim == batch else 1 for dim in range(known.ndim)])
            others = (other for other in columns if other is not column)
            if bool((known == line).all()) and all(
                is_invariant(graph, other.value, batch, made_by) for other in others
            ):
                column.batch = batch
                used.add(batch)
                break


def is_invariant(graph: Graph, value: int, dim: int, made_by: Mapping[int, Op], depth: int = _DEPTH) -> bool:
    """Return whether all slices of `value` along `dim` are known to be equal."""
    shape = graph.types[value].shape
    if shape[dim] == 1:
        return True
    known = graph.constants.get(value)
    if known is not None:
        return bool((known == known.take([0], dim)).all())
    maker = made_by.get(value)
    if maker is None or depth == 0:
        return False
    if maker.name == "stablehlo.broadcast_in_dim":
        dims = maker.attributes["broadcast_dimensions"]
        if dim not in dims:
            return True
        source = dims.index(dim)
        if graph.types[maker.operands[0]].shape[source] == 1:
            return True
        return is_invariant(graph, maker.operands[0], source, made_by, depth - 1)
    if maker.name == "stablehlo.reshape":
        source_shape = graph.types[maker.operands[0]].shape
        kept = [position for position, size in enumerate(source_shape) if size != 1]
        if [source_shape[position] for position in kept] != [size for size in shape if size != 1]:
            return False
        place = sum(1 for size in shape[:dim] if size != 1)
        return is_invariant(graph, maker.operands[0], kept[place], made_by, depth - 1)
    if can_evaluate(maker.name):
        return all(
            graph.types[operand].shape == () or is_invariant(graph, operand, dim, made_by, depth - 1)
            for operand in maker.operands
        )
    return False


def _transpose(graph: Graph, value: int, order: list[int], at: Op, before: list[Op]) -> int:
    if order == list(range(len(order))):
        return value
    type_ = graph.types[value]
    result = graph.value(TensorType(tuple(type_.shape[dim] for dim in order), type_.dtype))
    before.append(Op("stablehlo.transpose", [value], [result], {"permutation": order}, [], at.location))
    return result


def _join(graph: Graph, columns: list[int], gone: set[int], at: Op, before: list[Op]) -> int:
    """Return the indices made of `columns`, without the batch dimensions in `gone`."""
    parts = []
    for column in columns:
        type_ = graph.types[column]
        limits = [1 if dim in gone else size for dim, size in enumerate(type_.shape)]
        cut = graph.value(TensorType(tuple(limits), type_.dtype))
        bounds = {"start_indices": [0] * len(limits), "limit_indices": limits, "strides": [1] * len(limits)}
        before.append(Op("stablehlo.slice", [column], [cut], bounds, [], at.location))
        shape = tuple(size for dim, size in enumerate(limits) if dim not in gone)
        flat = graph.value(TensorType(shape, type_.dtype))
        before.append(Op("stablehlo.reshape", [cut], [flat], {}, [], at.location))
        parts.append(flat)
    if len(parts) == 1:
        return parts[0]
    shape = graph.types[parts[0]].shape
    joined = graph.value(TensorType((*shape[:-1], len(parts)), graph.types[parts[0]].dtype))
    attributes = {"dimension": len(shape) - 1}
    before.append(Op("stablehlo.concatenate", parts, [joined], attributes, [], at.location))
    return joined
