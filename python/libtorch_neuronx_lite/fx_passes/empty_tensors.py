# SPDX-License-Identifier: Apache-2.0
"""Takes tensors without elements out of a graph: StableHLO's slices and the runtime's tensors begin at one element.

Such a tensor carries nothing but its shape. What is computed from empty tensors alone is a constant (a sum is 0, a
product 1, a mean NaN); an operator that joins or writes an empty tensor leaves the other operand as it is.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from .decompositions import RANDOM
from .editing import Editor, fake_mode_of, fake_value

aten = torch.ops.aten

# First argument: what stays when the written part, or the index that says where, is empty.
_WRITES = frozenset({
    aten.index_put.default, aten._unsafe_index_put.default, aten.index_add.default, aten.index_copy.default,
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two,
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
})  # fmt: skip


def is_empty(value: Any) -> bool:
    """Tell whether a value is a tensor without elements."""
    return isinstance(value, torch.Tensor) and value.numel() == 0


def remove_empty(gm: fx.GraphModule) -> None:
    """Replace every node that holds an empty tensor, and every use of one that can do without, in place."""
    graph = gm.graph
    mode = fake_mode_of(graph)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    known: dict[fx.Node, Any] = {}
    for node in list(graph.nodes):
        if node.op == "output":
            continue
        value = fake_value(node)
        editor = Editor(graph, mode, first if node.op == "placeholder" else node)
        if is_empty(value):
            if not node.users or node.target is aten.full.default:
                continue
            node.replace_all_uses_with(_full(editor, value, 0))
        elif node.op == "call_function":
            new = _without_empty(editor, node, known)
            if new is not None:
                node.replace_all_uses_with(new)


def _full(editor: Editor, like: torch.Tensor, number: Any) -> fx.Node:
    return editor.call(aten.full.default, list(like.shape), number, dtype=like.dtype, device=like.device)


def _without_empty(editor: Editor, node: fx.Node, known: dict[fx.Node, Any]) -> fx.Node | None:
    """Return what stands for a node with elements that reads empty tensors; None where it stays."""
    args: Any = node.args
    if node.target is operator.getitem:
        source, index = args
        return _constant(editor, node, known[source][index]) if source in known else None
    values = [v for n in node.all_input_nodes for v in pytree.tree_leaves(fake_value(n)) if isinstance(v, torch.Tensor)]
    if not any(is_empty(value) for value in values):
        return None
    if all(is_empty(value) for value in values):
        if getattr(node.target, "overloadpacket", None) in RANDOM:
            return None
        known[node] = _evaluate(node)
        return _constant(editor, node, known[node])
    if node.target is aten.cat.default:
        parts = [part for part in args[0] if not is_empty(fake_value(part))]
        result = fake_value(node)
        if len(parts) == 1 and fake_value(parts[0]).dtype == result.dtype:
            only: fx.Node = parts[0]
            return only
        node.args = (parts, *args[1:])
        return None
    if node.target in _WRITES:
        kept: fx.Node = args[0]
        return kept
    return None


def _evaluate(node: fx.Node) -> Any:
    def real(source: fx.Node) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"), fake_value(source)
        )

    target: Any = node.target
    with unset_fake_temporarily():
        args, kwargs = pytree.tree_map_only(fx.Node, real, (node.args, node.kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return target(*args, **kwargs)


def _constant(editor: Editor, node: fx.Node, value: Any) -> fx.Node | None:
    """Return a node that holds a computed value, whose elements are all the same; None for a tuple."""
    if not isinstance(value, torch.Tensor):
        return None
    with unset_fake_temporarily():
        number = value.flatten()[0].item()
    return _full(editor, fake_value(node), number)
