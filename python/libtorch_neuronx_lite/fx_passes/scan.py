# SPDX-License-Identifier: Apache-2.0
"""Running products, maxima and minima as log2(n) shifted combinations, which lower where a scan operator does not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .widening import widen


def _shift(x: torch.Tensor, dim: int, by: int, fill: float | int | bool) -> torch.Tensor:
    """Move elements towards higher indices and fill the start."""
    head = list(x.shape)
    head[dim] = by
    start = torch.full(head, fill, dtype=x.dtype, device=x.device)
    return torch.cat((start, x.narrow(dim, 0, x.shape[dim] - by)), dim)


def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Decompose `aten.cumprod`. Products associate in pairs, so floats may differ from eager in the last bits."""
    out = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    y = widen(x.to(out))
    if x.dim() == 0:
        return y.to(out)
    step = 1
    while step < x.shape[dim]:
        y = y * _shift(y, dim, step, 1)
        step *= 2
    return y.to(out)


def _running(
    x: torch.Tensor, dim: int, later: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the running extreme and the index of its latest occurrence, as PyTorch's CPU kernel does."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.dim()
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    index = torch.arange(x.shape[dim], device=x.device).reshape(shape).expand(x.shape)
    value, step = x, 1
    while step < x.shape[dim]:
        earlier, earlier_index = _shift(value, dim, step, 0), _shift(index, dim, step, -1)
        keep = later(value, earlier) | (earlier_index < 0)
        value, index = torch.where(keep, value, earlier), torch.where(keep, index, earlier_index)
        step *= 2
    return value, index


def cummax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.cummax`; NaN, once met, stays."""
    return _running(x, dim, lambda value, earlier: ((value >= earlier) & (earlier == earlier)) | (value != value))


def cummin(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.cummin`; NaN, once met, stays."""
    return _running(x, dim, lambda value, earlier: ((value <= earlier) & (earlier == earlier)) | (value != value))
