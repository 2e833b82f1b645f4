# SPDX-License-Identifier: Apache-2.0
"""Finds the operator on which a lowering dies: each kind of node of the graph is lowered alone."""

from __future__ import annotations

import operator
import time
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .. import worker
from .importer import import_graph

# Seconds for the whole search, and for one operator: it runs only after a failure, for the sake of its message.
_BUDGET = 30.0
_ONE = 10.0


def find_culprit(gm: fx.GraphModule) -> fx.Node | None:
    """Return the first node whose lowering alone ends the worker, or None when none does within the budget.

    Nodes that make or take complex numbers come first: they are what aborts MLIR's conversions.
    """
    kinds: dict[tuple[Any, ...], fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            kinds.setdefault(_kind(node), node)
    deadline = time.monotonic() + _BUDGET
    for node in sorted(kinds.values(), key=lambda node: not _touches_complex(node)):
        if time.monotonic() > deadline:
            return None
        if _dies(node):
            return node
    return None


def _describe(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return _describe(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape))
    return repr(value)


def _kind(node: fx.Node) -> tuple[Any, ...]:
    leaves = pytree.tree_leaves((node.args, node.kwargs), is_leaf=lambda x: isinstance(x, fx.Node))
    return (node.target, *(_describe(leaf) for leaf in leaves))


def _touches_complex(node: fx.Node) -> bool:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in pytree.tree_leaves(values))


def _dies(node: fx.Node) -> bool:
    graph = fx.Graph()
    replaced: dict[fx.Node, fx.Node] = {}
    for position, source in enumerate(node.all_input_nodes):
        replaced[source] = graph.placeholder(f"input{position}")
        replaced[source].meta["val"] = source.meta.get("val")
    copied = graph.node_copy(node, replaced.__getitem__)
    copied.meta["val"] = node.meta.get("val")
    if not isinstance(copied.meta["val"], torch.Tensor):
        return False
    graph.output((copied,))
    try:
        module = import_graph(fx.GraphModule({}, graph))
        params = {"aliases": [], "name": "one", "replicas": 0}
        worker.run("stablehlo.pipeline:lower", {"torch": module}, params, timeout=_ONE, name="one")
    except worker.WorkerError:
        return True
    except Exception:  # any other failure is not the one that is looked for
        return False
    return False
