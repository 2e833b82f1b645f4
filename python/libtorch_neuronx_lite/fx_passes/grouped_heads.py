# SPDX-License-Identifier: Apache-2.0
"""Takes the repetition of key and value heads out of a Dynamo graph where attention can read the heads as groups.

Models write `x[:, :, None].expand(batch, heads, groups, rows, width).reshape(batch, heads * groups, rows, width)`
before attention; a static cache is then copied whole, `groups` times, in each decode step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .attention import scaled_dot_product_attention


def fold_repeated_heads(gm: fx.GraphModule) -> None:
    """Give attention the unrepeated keys and values, where both are repeated; runs after `replace_attention`."""
    changed = False
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not scaled_dot_product_attention or len(node.args) < 3:
            continue
        key, value = _unrepeated(node.args[1]), _unrepeated(node.args[2])
        if key is None or value is None or node.kwargs.get("enable_gqa"):
            continue
        repeated = node.args[1:3]
        node.args = (node.args[0], key, value, *node.args[3:])
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        for unused in repeated:
            _erase_chain(gm.graph, unused)
        changed = True
    if changed:
        gm.recompile()


def _erase_chain(graph: fx.Graph, node: Any) -> None:
    """Erase reshape, expand and index where nothing else reads them.

    Not by `eliminate_dead_code`: in a Dynamo graph that removes in-place calls, whose results nobody reads, as well.
    """
    for _ in range(3):
        if not isinstance(node, fx.Node) or node.users:
            return
        source = node.args[0]
        graph.erase_node(node)
        node = source


def _unrepeated(node: Any) -> fx.Node | None:
    """Return the tensor whose heads (dimension 1 of 4) the node repeats one after the other, or None."""
    expand = _source(node, "reshape")
    index = _source(expand, "expand")
    if index is None or index.op != "call_function" or getattr(index.target, "__name__", "") != "getitem":
        return None
    source = index.args[0]
    whole, wide, before, after = (_shape(n) for n in (node, expand, index, source))
    if not isinstance(source, fx.Node) or len(after) != 4 or len(wide) != 5 or before != (*after[:2], 1, *after[2:]):
        return None
    groups = wide[2]
    if wide != (*after[:2], groups, *after[2:]) or whole != (after[0], after[1] * groups, *after[2:]):
        return None
    return source


def _source(node: Any, method: str) -> fx.Node | None:
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target != method:
        return None
    source = node.args[0]
    return source if isinstance(source, fx.Node) else None


def _shape(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
