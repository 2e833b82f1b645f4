# SPDX-License-Identifier: Apache-2.0
"""Inserts nodes into an FX graph with the fake value that every later stage reads from `meta["val"]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Decompositions = dict[Any, Callable[..., Any]]


def fake_value(node: fx.Node) -> Any:
    """Return the traced value of a node: a fake tensor, a number, or a tuple of them."""
    return node.meta.get("val")


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """Return the fake mode that the graph was traced under; a new one when it holds no tensors."""
    for node in graph.nodes:
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode
    return FakeTensorMode()


class Editor:
    """Inserts calls before one node, giving each its fake value and the source line of that node."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode, before: fx.Node) -> None:
        self._graph = graph
        self._mode = mode
        self._before = before

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Insert `target(*args, **kwargs)`; node arguments stand for their fake values."""
        values, keyword_values = self._on_one_device(pytree.tree_map_only(fx.Node, fake_value, (args, kwargs)))
        with self._mode:
            value = target(*values, **keyword_values)
        return self._insert(target, args, kwargs, value)

    def node(self, target: Callable[..., Any], args: tuple[Any, ...], like: Any) -> fx.Node:
        """Insert `target(*args)` without running it; its value is a new fake tensor like `like`."""
        with self._mode:
            value = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._insert(target, args, {}, value)

    def _insert(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> fx.Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(target, args, kwargs)
        self._describe(node, value)
        return node

    def inline(self, function: Callable[..., Any], args: list[fx.Node], decompositions: Decompositions) -> Any:
        """Trace `function` over the arguments' fake values and insert what it traced.

        Returns what the function returned, with nodes in place of tensors.
        """
        with self._mode:
            values = self._on_one_device([fake_value(a) for a in args])
            traced = make_fx(function, decomposition_table=decompositions)(*values)
        mapping: dict[fx.Node, fx.Node] = {}
        arguments = iter(args)
        result: Any = None
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                mapping[node] = next(arguments)
            elif node.op == "output":
                result = pytree.tree_map_only(fx.Node, mapping.__getitem__, node.args[0])
            elif node.op == "get_attr":
                raise AssertionError(f"a decomposition captured the tensor {node.target}: build it inside the function")
            else:
                with self._graph.inserting_before(self._before):
                    copied = self._graph.node_copy(node, mapping.__getitem__)
                self._describe(copied, node.meta["val"])
                mapping[node] = copied
        return result

    def _on_one_device(self, values: Any) -> Any:
        """Move fake values to the graph's device: literals, and arguments that a call moves, are still on the CPU."""
        leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        device = next((leaf.device for leaf in leaves if leaf.device.type != "cpu"), None)
        if device is None:
            return values
        with self._mode:
            return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device), values)

    def _describe(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
        for key in ("stack_trace", "nn_module_stack"):
            if key in self._before.meta:
                node.meta[key] = self._before.meta[key]


def source_line(node: fx.Node) -> str | None:
    """Return `file:line, in function: code` of the user's line that made the node, or None."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    frames = [line.strip() for line in trace.strip().splitlines()]
    heads = [i for i, line in enumerate(frames) if line.startswith('File "')]
    if not heads:
        return None
    head = frames[heads[-1]]
    file, _, rest = head[len('File "') :].partition('", line ')
    number, _, function = rest.partition(", in ")
    code = frames[heads[-1] + 1] if heads[-1] + 1 < len(frames) else ""
    return f"{file}:{number}, in {function}: {code}".rstrip(": ")
