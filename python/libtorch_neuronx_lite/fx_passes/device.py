# SPDX-License-Identifier: Apache-2.0
"""Takes devices out of a graph: inside an executable there is one, and its index is not part of the graph."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .._errors import CompileError
from .editing import fake_value

aten = torch.ops.aten

_TRANSFER_KEYS = ("device", "pin_memory", "layout", "non_blocking")


def graph_device(gm: fx.GraphModule) -> torch.device | None:
    """Return the neuron device that the graph's values live on; None when there is none.

    Raises:
        CompileError: the graph mixes two neuron devices.
    """
    found: dict[torch.device, fx.Node] = {}
    for node in gm.graph.nodes:
        for leaf in pytree.tree_leaves(fake_value(node)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta"):
                found.setdefault(leaf.device, node)
    if len(found) > 1:
        places = " and ".join(f"{device} (node '{node.name}')" for device, node in found.items())
        raise CompileError(
            f"one graph works on one neuron core, this one uses {places}. Move its inputs to one device."
        )
    return next(iter(found), None)


def drop_devices(gm: fx.GraphModule) -> None:
    """Remove device keywords, and copies that did nothing but change the device."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        node.kwargs = {key: value for key, value in node.kwargs.items() if key not in _TRANSFER_KEYS}
        if node.target is torch.ops.prims.device_put.default:
            _bypass(gm.graph, node)
        elif node.target is aten._to_copy.default:
            source, result = fake_value(node.args[0]), fake_value(node)
            if source.dtype == result.dtype:
                _bypass(gm.graph, node)
            else:
                node.kwargs = {"dtype": result.dtype}
        elif node.target is aten.clone.default:
            # A value has no memory format: the layout of results is `results`' affair.
            _bypass(gm.graph, node)


def _bypass(graph: fx.Graph, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    node.replace_all_uses_with(source)
    graph.erase_node(node)
