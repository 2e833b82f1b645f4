# SPDX-License-Identifier: Apache-2.0
"""Adaptive pooling as means over windows whose places are known when the graph is traced."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def _pool_axis(x: torch.Tensor, dim: int, out: int) -> torch.Tensor:
    """Average windows of one dimension: output i covers floor(i * n / out) to ceil((i + 1) * n / out)."""
    size = x.shape[dim]
    if size % out == 0:
        shape = [*x.shape[:dim], out, size // out, *x.shape[dim + 1 :]]
        return x.reshape(shape).sum(dim + 1) / (size // out)
    parts = []
    for i in range(out):
        start, end = i * size // out, -(-(i + 1) * size // out)
        parts.append(x.narrow(dim, start, end - start).sum(dim, keepdim=True) / (end - start))
    return torch.cat(parts, dim)


def adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Decompose `aten._adaptive_avg_pool2d` and `_adaptive_avg_pool3d`; sums are f32 for narrow floats."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    for axis, out in enumerate(output_size):
        wide = _pool_axis(wide, x.dim() - len(output_size) + axis, out)
    return wide.to(x.dtype)
