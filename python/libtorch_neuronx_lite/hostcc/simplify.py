# SPDX-License-Identifier: Apache-2.0
"""Graph to smaller graph."""

from __future__ import annotations

from libtorch_neuronx_lite.hostcc.graph import Graph


def simplify(graph: Graph) -> None:
    """Drop ops whose results nobody uses."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if needed.isdisjoint(op.results):
            continue
        kept.append(op)
        needed.update(op.operands)
    graph.replace_ops(kept[::-1])
