# SPDX-License-Identifier: Apache-2.0
"""Matrix products on short floats without the conversions around them: the kernels accumulate in f32 anyway."""

from __future__ import annotations

from collections import Counter

from libtorch_neuronx_lite.hostcc.graph import Graph, Op, TensorType

_SHORT = ("bf16", "f16")
_VIEWS = ("stablehlo.transpose", "stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.slice")


def fuse_dot_converts(graph: Graph) -> None:
    """Rewrite ``dot(convert(a), convert(b)) : f32`` of two short floats to ``dot(a, b) : f32``.

    A following conversion back to the short type joins the product when nothing else reads the f32 result: the kernel
    then rounds once, as the conversion did.
    """
    uses: Counter[int] = Counter(graph.outputs)
    for op in graph.ops:
        uses.update(op.operands)
    ops: list[Op] = []
    for op in graph.ops:
        if op.name == "stablehlo.dot_general" and graph.types[op.results[0]].dtype == "f32":
            chains = [_short_source(graph, operand) for operand in op.operands]
            if None not in chains and len({graph.types[chain[0]].dtype for chain in chains if chain is not None}) == 1:
                op.operands = [_replay(graph, chain, ops) for chain in chains if chain is not None]
        ops.append(op)
    graph.replace_ops(ops)
    fused: set[int] = set()
    for op in graph.ops:
        if op.name != "stablehlo.convert":
            continue
        producer = graph.producer(op.operands[0])
        if producer is None or producer.name != "stablehlo.dot_general" or uses[op.operands[0]] != 1:
            continue
        target = graph.types[op.results[0]].dtype
        if target in _SHORT and all(graph.types[operand].dtype == target for operand in producer.operands):
            producer.results = list(op.results)
            fused.add(id(op))
    if fused:
        graph.replace_ops([op for op in graph.ops if id(op) not in fused])


def _short_source(graph: Graph, value: int) -> tuple[int, list[Op]] | None:
    """Return the short float that `value` is the f32 form of, and the views between the two, else None."""
    views: list[Op] = []
    while True:
        producer = graph.producer(value)
        if producer is None:
            return None
        if producer.name in _VIEWS:
            views.append(producer)
        elif producer.name == "stablehlo.convert" and graph.types[producer.operands[0]].dtype in _SHORT:
            return producer.operands[0], views[::-1]
        else:
            return None
        value = producer.operands[0]


def _replay(graph: Graph, chain: tuple[int, list[Op]], ops: list[Op]) -> int:
    """Append the chain's views, taken of the short float itself, and return the last one's value."""
    value, views = chain
    for view in views:
        shape, dtype = graph.types[view.results[0]].shape, graph.types[value].dtype
        result = graph.value(TensorType(shape, dtype))
        ops.append(Op(view.name, [value], [result], view.attributes, [], view.location))
        value = result
    return value
