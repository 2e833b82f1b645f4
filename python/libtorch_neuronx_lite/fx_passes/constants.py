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
    module, as CPU tensors.
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
            known.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
            constants.append(tensor)
        node.replace_all_uses_with(known)
        graph.erase_node(node)
    return constants


def hide_uint8_constants(gm: fx.GraphModule) -> None:
    """Make uint8 constants from int32 ones, in place: torch-mlir does not lower the uint8 literals that it folds.

    The exclusive or with zero keeps it from folding the conversion; StableHLO's own simplification ends it.
    """
    mode = fake_mode_of(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target is aten.full.default and node.meta["val"].dtype == torch.uint8:
            wide = Editor(gm.graph, mode, node).call(aten.full.default, *node.args, dtype=torch.int32)
        elif (
            node.target is aten._to_copy.default
            and node.args[0].op == "get_attr"
            and (node.meta["val"].dtype == torch.uint8)
        ):
            wide = node.args[0]
        else:
            continue
        editor = Editor(gm.graph, mode, node)
        zero = editor.call(aten.full.default, [], 0, dtype=torch.int32)
        same = editor.call(aten.bitwise_xor.Tensor, wide, zero)
        node.replace_all_uses_with(editor.call(aten._to_copy.default, same, dtype=torch.uint8))
        gm.graph.erase_node(node)


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


_STORED_AS = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
}


def _place_literal(gm: fx.GraphModule, mode: FakeTensorMode, node: fx.Node, literal: torch.Tensor, name: str) -> None:
    graph, dtype = gm.graph, literal.dtype
    if literal.numel() == 1 and not literal.is_complex():
        full = Editor(graph, mode, node).call(aten.full.default, list(literal.shape), literal.item(), dtype=dtype)
        node.replace_all_uses_with(full)
        graph.erase_node(node)
        return
    # Literals of these dtypes are not taken by Python's buffers or by torch-mlir: they are stored wide, then narrowed.
    wide = _STORED_AS.get(dtype)
    stored = literal if wide is None else literal.to(wide)
    gm.register_buffer(name, stored)  # a buffer: FX warns about a get_attr of anything else
    with graph.inserting_before(node):
        use = graph.get_attr(name)
    use.meta["val"] = mode.from_tensor(stored, static_shapes=True)
    if wide is not None:
        use = Editor(graph, mode, node).call(aten._to_copy.default, use, dtype=dtype)
    node.replace_all_uses_with(use)
    graph.erase_node(node)


def separate_literals(gm: fx.GraphModule) -> None:
    """Give each use of a literal a `get_attr` node of its own, in place: torch-mlir's importer wants that."""
    used: set[fx.Node] = set()

    def own(node: fx.Node) -> fx.Node:
        if node.op != "get_attr" or node not in used:
            used.add(node)
            return node
        copy = gm.graph.get_attr(str(node.target))
        copy.meta = dict(node.meta)
        return copy

    for user in list(gm.graph.nodes):
        with gm.graph.inserting_before(user):
            user.args, user.kwargs = fx.map_arg(user.args, own), fx.map_arg(user.kwargs, own)
