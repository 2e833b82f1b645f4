# SPDX-License-Identifier: Apache-2.0
"""Activations computed in f32 and rounded once, as PyTorch's CPU kernels do."""

from __future__ import annotations

import math

import torch

from .widening import widen


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Decompose `aten.gelu`: exact with erf, or the tanh form."""
    wide = widen(x)
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.silu`."""
    wide = widen(x)
    return (wide * torch.sigmoid(wide)).to(x.dtype)


def mish(x: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.mish`."""
    wide = widen(x)
    return (wide * torch.tanh(torch.nn.functional.softplus(wide))).to(x.dtype)


def softplus(x: torch.Tensor, beta: float = 1, threshold: float = 20) -> torch.Tensor:
    """Decompose `aten.softplus`."""
    wide = widen(x)
    scaled = wide * beta
    return torch.where(scaled > threshold, wide, torch.log1p(torch.exp(scaled)) / beta).to(x.dtype)
