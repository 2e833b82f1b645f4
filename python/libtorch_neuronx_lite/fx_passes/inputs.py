# SPDX-License-Identifier: Apache-2.0
"""Drops the placeholders that nothing reads and says which arguments of the call an executable takes."""

from __future__ import annotations

import torch
from torch import fx

from .editing import fake_value


def take_inputs(gm: fx.GraphModule, aliased: set[int]) -> tuple[list[int], set[int]]:
    """Erase unused placeholders.

    Args:
        gm: the graph, its output node already the executable's.
        aliased: indices of the arguments that an output's memory is; they stay even when nothing reads them.

    Returns:
        The argument index of each placeholder that stays, in order, and those of them that live on the CPU.
    """
    kept: list[int] = []
    on_cpu: set[int] = set()
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(placeholders):
        value = fake_value(node)
        is_tensor = isinstance(value, torch.Tensor)
        if not node.users and index not in aliased:
            gm.graph.erase_node(node)
            continue
        kept.append(index)
        if is_tensor and value.device.type == "cpu":
            on_cpu.add(index)
    return kept, on_cpu
