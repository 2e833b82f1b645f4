# SPDX-License-Identifier: Apache-2.0
"""Registered memory: what peers may reach, and what keeps it alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .errors import KvLayoutError, status_error
from .layout import Region

if TYPE_CHECKING:
    from .agent import Agent


def whole_region(tensor: torch.Tensor, name: str) -> Region:
    """Return the region of a contiguous tensor.

    Raises:
        KvLayoutError: it is empty or has holes.
    """
    if tensor.numel() == 0 or not tensor.is_contiguous():
        raise KvLayoutError(f"{name} of shape {tuple(tensor.shape)} must be contiguous and not empty.")
    core = (tensor.device.index or 0) if tensor.device.type == "neuron" else -1
    return Region(tensor.data_ptr(), tensor.numel() * tensor.element_size(), name, core, tensor)


class RegisteredMemory:
    """Regions that peers may reach. As a context manager they are deregistered on the way out.

    Attributes:
        indices: of the regions in the agent's table; never used twice.
        regions: the memory; kept alive while it is registered.
    """

    def __init__(self, agent: Agent, regions: Sequence[Region], indices: Sequence[int]) -> None:
        self._agent = agent
        self.regions = tuple(regions)
        self.indices = tuple(indices)
        self._pending = list(indices)

    def deregister(self) -> None:
        """Take the memory back from the agent. Repeating it is fine.

        Raises:
            KvBusyError: a lease or a transfer still uses it.
        """
        while self._pending:
            code, message = self._agent.native.deregister(self._pending[-1])
            if code:
                raise status_error(code, message)
            self._pending.pop()
        self._agent._registered.discard(self)

    def __enter__(self) -> RegisteredMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.deregister()
