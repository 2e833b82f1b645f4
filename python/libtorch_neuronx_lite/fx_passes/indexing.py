# SPDX-License-Identifier: Apache-2.0
"""Indexed reads and writes in the forms that lower to one gather or one scatter."""

from __future__ import annotations

import torch


def index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.index_copy` into `index_put`."""
    if x.dim() == 0:
        return torch.ops.aten.index_put(x.unsqueeze(0), [index.reshape(-1)], source.reshape(-1)).squeeze(0)
    dim %= x.dim()
    indices: list[torch.Tensor | None] = [None] * dim + [index.reshape(-1)]
    return torch.ops.aten.index_put(x, indices, source)


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.masked_scatter`: the n-th true element takes the n-th element of source."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask, x = mask.expand(shape), x.expand(shape)
    if source.numel() == 0 or x.numel() == 0:
        return x.clone()
    position = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    position = position.clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1)[position].reshape(shape), x)


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.topk` into a sort (stable once lowered) and a slice; indices are int64, equal values keep their order."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = torch.ops.aten.sort.default(x, dim, largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.sort.stable` into the form torch-mlir knows; the lowering makes every sort stable."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return torch.ops.aten.sort.default(x, dim, descending)


def argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """Decompose `aten.argsort`."""
    return sort_stable(x, dim=dim, descending=descending)[1]
