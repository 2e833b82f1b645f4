# SPDX-License-Identifier: Apache-2.0
"""Refuses graphs that take, make or return a dtype which the chip does not have."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .._errors import UnsupportedDtypeError
from .editing import fake_value, source_line

_REMEDY = {
    torch.float64: "torch.float32",
    torch.complex128: "torch.complex64",
    torch.uint16: "torch.int32",
    torch.uint32: "torch.int64",
    torch.uint64: "torch.int64",
}


def check_dtypes(gm: fx.GraphModule) -> None:
    """Raise for the first node whose value has such a dtype.

    Raises:
        UnsupportedDtypeError: with the node's name, the dtype, the user's line and the dtype to use.
    """
    for node in gm.graph.nodes:
        if node.op == "output" or (node.op == "placeholder" and not node.users):
            continue
        for leaf in pytree.tree_leaves(fake_value(node)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in _REMEDY:
                _refuse(node, leaf)


def _refuse(node: fx.Node, value: torch.Tensor) -> None:
    name = str(value.dtype).removeprefix("torch.")
    if node.op == "placeholder":
        role, line = f"input '{node.name}'", next((source_line(user) for user in node.users if source_line(user)), None)
    else:
        role, line = f"node '{node.name}' ({node.target})", source_line(node)
    raise UnsupportedDtypeError(
        f"{role} of the compiled graph has dtype {name}, which the neuron device computes with only eagerly, through"
        f" the CPU (at {line or 'an unknown line'}). Use {_REMEDY[value.dtype]}, or leave this part uncompiled."
    )
