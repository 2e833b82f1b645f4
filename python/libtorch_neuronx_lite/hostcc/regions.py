# SPDX-License-Identifier: Apache-2.0
"""What the body of a reduction, a scatter or a sort computes, found by running it on sample scalars.

Frontends write the same comparison in many shapes (selects, NaN tests, total order). The meaning of an argmax or a sort
comparator is decided here by its results on a small table that tells the candidates apart, never by its spelling.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import FLOATS, STORAGE, Array, from_numeric, to_numeric
from libtorch_neuronx_lite.hostcc.evaluate import can_evaluate, evaluate
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, Region

_COMBINERS = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def combine_kind(graph: Graph, region: Region, result: int) -> str | None:
    """Return how one result of a body combines its two arguments: a step's `kind`, `update`, or None."""
    count = len(region.results)
    if len(region.arguments) != 2 * count:
        return None
    pair = {region.arguments[result], region.arguments[result + count]}
    value = region.results[result]
    if value == region.arguments[result + count]:
        return "update"
    for op in region.ops:
        if op.results == [value]:
            name = op.name.partition(".")[2]
            return name if name in _COMBINERS and len(op.operands) == 2 and set(op.operands) == pair else None
    return None


def combine_kinds(graph: Graph, region: Region) -> list[str] | None:
    """Return the kind of every result when each depends on its own pair of arguments alone, else None."""
    kinds = [combine_kind(graph, region, result) for result in range(len(region.results))]
    known = [kind for kind in kinds if kind is not None]
    return known if known and len(known) == len(kinds) else None


def is_identity(value: Array, dtype: str, kind: str) -> bool:
    """Return whether the scalar `value` is the neutral element of `kind` for `dtype`."""
    number = to_numeric(np.asarray(value).reshape(()), dtype)
    if kind in ("add", "or", "xor"):
        return bool(number == 0)
    if kind == "multiply":
        return bool(number == 1)
    if kind in ("maximum", "minimum"):
        if dtype in FLOATS:
            return bool(number == (-np.inf if kind == "maximum" else np.inf))
        if dtype == "bool":
            return bool(number == (kind == "minimum"))
        limits = np.iinfo(STORAGE[dtype])
        return bool(number == (limits.min if kind == "maximum" else limits.max))
    return False


def _run(graph: Graph, region: Region, arguments: list[Array]) -> list[Array] | None:
    values: dict[int, Array] = dict(zip(region.arguments, arguments, strict=True))

    def get(value: int) -> Array:
        return values[value] if value in values else graph.constants[value]

    for op in region.ops:
        if not can_evaluate(op.name) or any(v not in values and v not in graph.constants for v in op.operands):
            return None
        types = [graph.types[operand] for operand in op.operands]
        values[op.results[0]] = evaluate(
            op, [get(operand) for operand in op.operands], types, graph.types[op.results[0]]
        )
    if any(result not in values and result not in graph.constants for result in region.results):
        return None
    return [get(result) for result in region.results]


def _samples(dtype: str) -> Array:
    values = np.array([0, 1] if dtype == "bool" else [1, 2, 5, 3])
    return from_numeric(values, dtype)


def argument_reduction(graph: Graph, op: Op) -> str | None:
    """Return ``max`` or ``min`` when a two-operand reduce is an argmax or argmin along one dimension, else None.

    Ties may go to either index in the body, because StableHLO leaves the order of reduction open.
    """
    (dim,) = op.attributes["dimensions"]
    if not _is_iota(graph, op.operands[1], dim):
        return None
    region = op.regions[0]
    value_type, index_type = (graph.types[argument].dtype for argument in region.arguments[:2])
    rows = list(itertools.product(_samples(value_type), [4, 6], _samples(value_type), [5, 7]))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    arguments = [
        columns[0].astype(STORAGE[value_type]),
        columns[1].astype(STORAGE[index_type]),
        columns[2].astype(STORAGE[value_type]),
        columns[3].astype(STORAGE[index_type]),
    ]
    results = _run(graph, region, arguments)
    if results is None:
        return None
    left, right = to_numeric(arguments[0], value_type), to_numeric(arguments[2], value_type)
    got, index = to_numeric(results[0], value_type), results[1]
    for kind, best, wins in (
        ("max", np.maximum(left, right), left > right),
        ("min", np.minimum(left, right), left < right),
    ):
        expected = np.where(wins, arguments[1], arguments[3])
        tie = left == right
        fair = (index == expected) | (tie & ((index == arguments[1]) | (index == arguments[3])))
        if np.array_equal(got, best) and bool(fair.all()):
            return kind
    return None


def _is_iota(graph: Graph, value: int, dim: int) -> bool:
    type_ = graph.types[value]
    known = graph.constants.get(value)
    if known is not None:
        line = np.arange(type_.shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(type_.shape))])
        return bool((known == line).all())
    producer = graph.producer(value)
    while producer is not None and producer.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        source = graph.types[producer.operands[0]].shape
        if producer.name == "stablehlo.reshape":
            kept = [size for size in source if size != 1]
            if kept != [size for size in graph.types[producer.results[0]].shape if size != 1]:
                return False
            if type_.shape[dim] == 1:
                return False
            position = sum(1 for size in graph.types[producer.results[0]].shape[:dim] if size != 1)
            dim = [d for d, size in enumerate(source) if size != 1][position]
        else:
            dims = producer.attributes["broadcast_dimensions"]
            if dim not in dims:
                return False
            dim = dims.index(dim)
            if source[dim] != graph.types[producer.results[0]].shape[producer.attributes["broadcast_dimensions"][dim]]:
                return False
        type_ = graph.types[producer.operands[0]]
        producer = graph.producer(producer.operands[0])
    return (
        producer is not None
        and producer.name in ("stablehlo.iota", "stablehlo.dynamic_iota")
        and producer.attributes["iota_dimension"] == dim
    )


def sort_order(graph: Graph, op: Op) -> bool | None:
    """Return True for a descending comparator on the first operand, False for ascending, None for any other."""
    region = op.regions[0]
    types = [graph.types[argument].dtype for argument in region.arguments]
    keys = _samples(types[0])
    # Every pair of keys against every pair of values in the other operands: those must not matter.
    rows: list[tuple[Any, ...]] = list(itertools.product(keys, keys, range(2), range(2)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    arguments = []
    for position, dtype in enumerate(types):
        if position < 2:
            arguments.append(columns[position].astype(STORAGE[dtype]))
        else:
            arguments.append(from_numeric(columns[2 + position % 2], dtype))
    results = _run(graph, region, arguments)
    if results is None:
        return None
    left, right = to_numeric(arguments[0], types[0]), to_numeric(arguments[1], types[0])
    distinct = left != right
    got = np.broadcast_to(results[0], left.shape)
    if np.array_equal(got[distinct], (left > right)[distinct]) and len(set(got[~distinct])) == 1:
        return True
    if np.array_equal(got[distinct], (left < right)[distinct]) and len(set(got[~distinct])) == 1:
        return False
    return None
