# SPDX-License-Identifier: Apache-2.0
"""Takes the closing `copy_(argument, value)` nodes out of a graph and says which argument each value updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from .._errors import CompileError
from .editing import Editor, fake_mode_of, fake_value, source_line

aten = torch.ops.aten


@dataclass
class Mutations:
    """What a graph writes into its arguments.

    Attributes:
        values: argument placeholder -> the node whose value the argument holds afterwards.
        written: node that stood for an argument after its update -> that argument's placeholder.
    """

    values: dict[fx.Node, fx.Node]
    written: dict[fx.Node, fx.Node]


def take_mutations(gm: fx.GraphModule) -> Mutations:
    """Remove every `copy_` from the graph.

    AOTAutograd (with `keep_inference_input_mutations`) ends a graph in one `copy_` per mutated argument, views and
    indexed writes already folded into its value. A `copy_` may itself be an output: it stays in the output node here,
    for `results` to resolve through `written`, and is erased there.

    Raises:
        CompileError: a node writes into something that is not an argument.
    """
    values: dict[fx.Node, fx.Node] = {}
    written: dict[fx.Node, fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target is aten.copy_.default:
            argument, value = node.args[0], node.args[1]
            argument = written.get(argument, argument)
            if argument.op != "placeholder":
                raise _not_an_argument(node)
            if fake_value(argument).numel() == 0:  # no element changes
                node.replace_all_uses_with(argument)
                gm.graph.erase_node(node)
                continue
            value = _like(gm, node, argument, value)
            values[argument] = value
            written[node] = argument
            node.replace_all_uses_with(value, delete_user_cb=lambda user: user.op != "output")
        elif node.target._schema.is_mutable:
            raise _not_an_argument(node)
    return Mutations(values, written)


def _like(gm: fx.GraphModule, node: fx.Node, argument: fx.Node, value: fx.Node) -> fx.Node:
    """Give the value the argument's shape and dtype, which `copy_` does by itself."""
    want, have = fake_value(argument), fake_value(value)
    editor = Editor(gm.graph, fake_mode_of(gm.graph), node)
    if have.dtype != want.dtype:
        value = editor.call(aten._to_copy.default, value, dtype=want.dtype)
    if have.shape != want.shape:
        value = editor.call(aten.expand.default, value, list(want.shape))
    return value


def _not_an_argument(node: fx.Node) -> CompileError:
    return CompileError(
        f"node '{node.name}' ({node.target}) writes into a value that is not an input of the graph"
        f" (at {source_line(node) or 'an unknown line'}). Write into the input tensor itself, or make the write part of"
        " an expression (torch.where, index_put, scatter)."
    )
