# SPDX-License-Identifier: Apache-2.0
"""Normalisations, means and variances computed in f32 and rounded once, as PyTorch's CPU kernels do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .widening import compute_dtype


def _dims(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    if dim is None or (isinstance(dim, Sequence) and len(dim) == 0):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % rank if rank else 0 for d in dims]


def _count(x: torch.Tensor, dims: list[int]) -> int:
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Decompose `aten.mean.dim`."""
    out = dtype or x.dtype
    if out.is_complex or not out.is_floating_point:
        return NotImplemented  # type: ignore[no-any-return]
    dims = _dims(dim, x.dim())
    total = torch.sum(x.to(compute_dtype(out)), dims, keepdim) if x.dim() else x.to(compute_dtype(out))
    return (total / _count(x, dims)).to(out)


def mean_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Decompose `aten.mean.default`."""
    return mean(x, None, False, dtype=dtype)


def _moments(
    x: torch.Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = _dims(dim, x.dim())
    count = _count(x, dims)
    wide = x.to(compute_dtype(x.dtype))
    average = torch.sum(wide, dims, True) / count if x.dim() else wide
    centred = wide - average
    squares = torch.sum(centred * centred, dims, keepdim) if x.dim() else centred * centred
    freedom = max(count - (1 if correction is None else correction), 0)
    # A zero divisor must give what eager gives (nan or inf), so it stays a division by zero at run time.
    variance = squares / torch.full((), float(freedom), dtype=wide.dtype, device=x.device)
    if not keepdim and x.dim():
        average = average.squeeze(dims)
    return variance, average


def var(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    """Decompose `aten.var.correction`."""
    if x.dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return _moments(x, dim, correction, keepdim)[0].to(x.dtype)


def std(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    """Decompose `aten.std.correction`."""
    if x.dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return _moments(x, dim, correction, keepdim)[0].sqrt().to(x.dtype)


def var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.var_mean.correction`."""
    if x.dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    variance, average = _moments(x, dim, correction, keepdim)
    return variance.to(x.dtype), average.to(x.dtype)


def native_layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decompose `aten.native_layer_norm`; the second and third results are the f32 mean and reciprocal deviation."""
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    variance, average = _moments(x, dims, 0.0, True)
    scale = torch.rsqrt(variance + eps)
    out = (x.to(average.dtype) - average) * scale
    if weight is not None:
        out = out * weight.to(average.dtype)
    if bias is not None:
        out = out + bias.to(average.dtype)
    return out.to(x.dtype), average, scale


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten._fused_rms_norm`; the second result is the reciprocal root mean square."""
    compute = compute_dtype(x.dtype)
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = x.to(compute)
    squares = torch.sum(wide * wide, dims, True) / _count(x, dims)
    scale = torch.rsqrt(squares + (torch.finfo(compute).eps if eps is None else eps))
    out = wide * scale
    if weight is not None:
        out = out * weight.to(compute)
    return out.to(x.dtype), scale


def native_group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decompose `aten.native_group_norm`."""
    rows = x.reshape(batch, groups, channels // groups * area)
    variance, average = _moments(rows, [2], 0.0, True)
    scale = torch.rsqrt(variance + eps)
    out = ((rows.to(average.dtype) - average) * scale).reshape(x.shape)
    shape = [1, channels] + [1] * (x.dim() - 2)
    if weight is not None:
        out = out * weight.to(average.dtype).reshape(shape)
    if bias is not None:
        out = out + bias.to(average.dtype).reshape(shape)
    return out.to(x.dtype), average.squeeze(2).to(x.dtype), scale.squeeze(2).to(x.dtype)


def batch_norm_inference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decompose `aten._native_batch_norm_legit_no_training`."""
    compute = compute_dtype(x.dtype)
    shape = [1, -1] + [1] * (x.dim() - 2)
    scale = torch.rsqrt(running_var.to(compute) + eps)
    if weight is not None:
        scale = scale * weight.to(compute)
    shift = -running_mean.to(compute) * scale
    if bias is not None:
        shift = shift + bias.to(compute)
    out = x.to(compute) * scale.reshape(shape) + shift.reshape(shape)
    return out.to(x.dtype), x.new_empty((0,)), x.new_empty((0,))
