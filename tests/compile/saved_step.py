# SPDX-License-Identifier: Apache-2.0
"""The model that tests save in one process and load in another."""

from __future__ import annotations

import torch


class Step(torch.nn.Module):
    """Updates a cache, as a decode step does."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(self.project(x))
        return cache.relu() + 1
