# SPDX-License-Identifier: Apache-2.0
"""Operators of integers that torch-mlir lowers for floats only."""

from __future__ import annotations

import torch


def absolute(x: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.abs` of integers; floats keep torch-mlir's lowering."""
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return x.clone() if not x.dtype.is_signed else torch.where(x < 0, -x, x)


def reciprocal(x: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.reciprocal` of integers; floats keep torch-mlir's lowering."""
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return torch.reciprocal(x.to(torch.get_default_dtype()))
