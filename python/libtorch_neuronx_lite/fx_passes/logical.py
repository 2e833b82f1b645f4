# SPDX-License-Identifier: Apache-2.0
"""Any and all over several dimensions, one dimension at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def any_dims(x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> torch.Tensor:
    """Decompose `aten.any.dims`; no dimensions means all of them, an empty list none."""
    return _each(aten.any.dim, x, dim, keepdim)


def all_dims(x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> torch.Tensor:
    """Decompose `aten.all.dims`; no dimensions means all of them, an empty list none."""
    return _each(aten.all.dim, x, dim, keepdim)


def _each(reduce: Callable[..., Any], x: torch.Tensor, dim: Sequence[int] | None, keepdim: bool) -> torch.Tensor:
    dims = range(x.dim()) if dim is None else [d % x.dim() if x.dim() else 0 for d in dim]
    out = x if x.dtype == torch.uint8 else x.to(torch.bool)
    if x.dim() == 0:
        return out.clone()
    for d in sorted(dims, reverse=True):
        out = reduce(out, d, keepdim)
    return out.clone() if out is x else out
