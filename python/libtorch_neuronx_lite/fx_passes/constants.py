# SPDX-License-Identifier: Apache-2.0
"""Turns tensors that tracing stored on the module into literals or, when they are large, into extra arguments."""

from __future__ import annotations

from functools import reduce

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from .editing import Editor, fake_mode_of

aten = torch.ops.aten

# Up to this many bytes a tensor becomes a literal of the graph, part of its key; beyond it, an argument.
LITERAL_BYTES = 4096

_FRESH = (aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.detach.default, aten.alias.default)


def take_constants(gm: fx.GraphModule) -> list[torch.Tensor]:
    """Give every stored tensor its place; return those that became arguments, in the order of the new placeholders.

    The new placeholders stand after the last one of the graph. One element becomes `aten.full`; a few stay on the
    module, as CPU tensors, with one `get_attr` node for each use (the importer wants that).
    """
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _FRESH:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    mode = fake_mode_of(graph)
    arguments: dict[str, fx.Node] = {}
    constants: list[torch.Tensor] = []
    literals = 0
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = reduce(getattr, str(node.target).split("."), gm)
        if not isinstance(tensor, torch.Tensor):
            continue
        with unset_fake_temporarily():
            if tensor.numel() * tensor.element_size() <= LITERAL_BYTES:
                literal = tensor.detach().cpu().contiguous()
                _place_literal(gm, mode, node, literal, f"_literal_{literals}")
                literals += 1
                continue
        known = arguments.get(str(node.target))
        if known is None:
            known = arguments[str(node.target)] = add_placeholder(graph, f"constant_{len(constants)}")
            known.meta["val"] = mode.from_tensor(tensor)
            constants.append(tensor)
        node.replace_all_uses_with(known)
        graph.erase_node(node)
    return constants


def argument_tensors(gm: fx.GraphModule) -> list[torch.Tensor]:
    """Return what `take_constants` will return for a graph that it has not seen yet; changes nothing."""
    found: dict[str, torch.Tensor] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr" and str(node.target) not in found:
            tensor = reduce(getattr, str(node.target).split("."), gm)
            if isinstance(tensor, torch.Tensor) and tensor.numel() * tensor.element_size() > LITERAL_BYTES:
                found[str(node.target)] = tensor
    return list(found.values())


def add_placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """Add a placeholder after the graph's last one."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(iter(graph.nodes))
    with graph.inserting_after(placeholders[-1]) if placeholders else graph.inserting_before(first):
        return graph.placeholder(name)


def _place_literal(gm: fx.GraphModule, mode: FakeTensorMode, node: fx.Node, literal: torch.Tensor, name: str) -> None:
    graph, dtype = gm.graph, literal.dtype
    if literal.numel() == 1 and not literal.is_complex():
        full = Editor(graph, mode, node).call(aten.full.default, list(literal.shape), literal.item(), dtype=dtype)
        node.replace_all_uses_with(full)
        graph.erase_node(node)
        return
    # Literals of narrow floats have no buffer that Python and MLIR share: they are stored wide and narrowed again.
    narrow = dtype in (torch.bfloat16, torch.float16)
    stored = literal.float() if narrow else literal
    gm.register_buffer(name, stored)  # a buffer: FX warns about a get_attr of anything else
    for user in list(node.users):
        with graph.inserting_before(user):
            use = graph.get_attr(name)
        use.meta["val"] = mode.from_tensor(stored)
        if narrow:
            use = Editor(graph, mode, user).call(aten._to_copy.default, use, dtype=dtype)
        user.replace_input_with(node, use)
    graph.erase_node(node)
