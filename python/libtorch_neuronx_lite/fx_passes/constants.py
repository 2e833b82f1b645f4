# SPDX-License-Identifier: Apache-2.0
"""Turns tensors that tracing stored on the module into literals or, when they are large, into extra arguments."""

from __future__ import annotations

import operator
from functools import reduce

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .editing import fake_mode_of

aten = torch.ops.aten

# Up to this many bytes a tensor becomes a literal of the graph, part of its key; beyond it, an argument.
LITERAL_BYTES = 4096

_FRESH = (aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.detach.default, aten.alias.default)


def take_constants(gm: fx.GraphModule) -> list[torch.Tensor]:
    """Give every stored tensor its place; return those that became arguments, in the order of the new placeholders.

    The new placeholders stand after the last one of the graph. Literals are left as CPU tensors on the module.
    """
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _FRESH:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    mode = fake_mode_of(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(iter(graph.nodes))
    taken: dict[str, fx.Node] = {}
    constants: list[torch.Tensor] = []
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = reduce(getattr, str(node.target).split("."), gm)
        if not isinstance(tensor, torch.Tensor):
            continue
        with unset_fake_temporarily():
            size = tensor.numel() * tensor.element_size()
            if size <= LITERAL_BYTES:
                literal = tensor.detach().cpu().contiguous()
                name = f"_literal_{len(taken)}" if "." in str(node.target) else str(node.target)
                setattr(gm, name, literal)
                node.target = name
        if size <= LITERAL_BYTES:
            node.meta["val"] = mode.from_tensor(literal)
            taken[name] = node
            continue
        known = taken.get(str(node.target))
        if known is None:
            anchor = placeholders[-1] if placeholders else None
            with graph.inserting_after(anchor) if anchor is not None else graph.inserting_before(first):
                known = graph.placeholder(f"constant_{len(constants)}")
            known.meta["val"] = mode.from_tensor(tensor)
            placeholders.append(known)
            constants.append(tensor)
            taken[str(node.target)] = known
        node.replace_all_uses_with(known)
        graph.erase_node(node)
    gm.recompile()
    return constants


def splat(tensor: torch.Tensor) -> float | int | bool | None:
    """Return the one number that fills a tensor, or None."""
    if tensor.numel() == 0 or tensor.is_complex():
        return None
    flat = tensor.reshape(-1)
    return flat[0].item() if bool(operator.eq(flat, flat[0]).all()) else None
