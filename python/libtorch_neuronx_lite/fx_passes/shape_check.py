# SPDX-License-Identifier: Apache-2.0
"""Refuses graphs in which a size, or a number for Python, depends on the values of a tensor."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .._errors import CompileError
from .editing import fake_value, source_line


def check_shapes(gm: fx.GraphModule) -> None:
    """Raise for the first node whose result is such a number or has such a size; all other sizes are concrete here.

    Raises:
        CompileError: with the node's name, its operator and the user's line.
    """
    for node in gm.graph.nodes:
        if node.op == "call_function" and any(map(_is_unknown, pytree.tree_leaves(fake_value(node)))):
            raise CompileError(
                f"node '{node.name}' ({node.target}) of the compiled graph has a result whose size or number only the"
                f" values of a tensor decide (at {source_line(node) or 'an unknown line'}), and an executable has fixed"
                " sizes. Use a form with a fixed size (torch.where, a mask, nonzero_static), or leave this part"
                " uncompiled: without fullgraph=True, torch.compile breaks the graph here."
            )


def _is_unknown(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(map(_is_unknown, leaf.shape))
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return not leaf.node.is_constant() and leaf.node.maybe_as_int() is None
    return False
