# SPDX-License-Identifier: Apache-2.0
"""Matrix products with their scale factors left out where they are one."""

from __future__ import annotations

import torch

from .widening import widen


def _combine(base: torch.Tensor, product: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
    if not base.dtype.is_floating_point and not base.dtype.is_complex:
        beta, alpha = int(beta), int(alpha)  # so does eager
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product.contiguous()
    if beta != 1:
        base = base * beta
    return base + product


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # The sum with the bias is taken before the one rounding, so the product stays f32.
    matmul = torch.bmm if a.dim() == 3 else torch.mm
    return matmul(widen(a), widen(b))


def addmm(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Decompose `aten.addmm`."""
    return _combine(base, _product(a, b), beta, alpha).to(a.dtype)


def baddbmm(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Decompose `aten.baddbmm`."""
    return _combine(base, _product(a, b), beta, alpha).to(a.dtype)


def addmv(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Decompose `aten.addmv`."""
    return _combine(base, _product(a, b.unsqueeze(1)).squeeze(1), beta, alpha).to(a.dtype)


def linalg_cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Decompose `aten.linalg_cross`: both products and their difference are rounded once, as in eager."""
    wide_a, wide_b = widen(a), widen(b)
    # Element i is a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1], counted modulo 3.
    forward = wide_a.roll(-1, dim) * wide_b.roll(-2, dim)
    return (forward - wide_a.roll(-2, dim) * wide_b.roll(-1, dim)).to(torch.result_type(a, b))
