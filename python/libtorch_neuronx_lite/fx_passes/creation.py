# SPDX-License-Identifier: Apache-2.0
"""Tensors without contents: inside a graph they are zeros, since a value must be something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Decompose `aten.empty.memory_format`."""
    return torch.full(tuple(size), 0, dtype=dtype or torch.get_default_dtype(), device=device)


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    """Decompose `aten.empty_strided`; the strides of a value are its consumer's affair."""
    return empty(size, dtype=dtype, device=device)


def new_empty(
    x: torch.Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    """Decompose `aten.new_empty`."""
    return torch.full(tuple(size), 0, dtype=dtype or x.dtype, device=device or x.device)


def empty_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Decompose `aten.empty_like`."""
    return torch.full(tuple(x.shape), 0, dtype=dtype or x.dtype, device=device or x.device)
