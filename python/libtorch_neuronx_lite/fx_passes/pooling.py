# SPDX-License-Identifier: Apache-2.0
"""Adaptive pooling over windows known at tracing, and the sizes rounded up that torch-mlir gets wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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


def _axes(parameter: Sequence[int], count: int) -> list[int]:
    return list(parameter) * count if len(parameter) == 1 else list(parameter)


def _outputs(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return how many windows there are along one axis in ceil mode: the last one must start inside the input."""
    count = -(-(size + 2 * padding - dilation * (kernel - 1) - 1) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _extra(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return how many elements the last window of ceil mode reaches past the padding."""
    last = (_outputs(size, kernel, stride, padding, dilation) - 1) * stride + dilation * (kernel - 1) + 1
    return max(last - size - 2 * padding, 0)


def _padded(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], fill: float
) -> torch.Tensor:
    """Return the input with its padding, and with what ceil mode's last windows reach past that."""
    edges: list[int] = []
    for axis in reversed(range(len(kernel))):
        size = x.shape[axis - len(kernel)]
        extra = _extra(size, kernel[axis], stride[axis], padding[axis], dilation[axis])
        edges += [padding[axis], padding[axis] + extra]
    return torch.constant_pad_nd(x, edges, fill)


def _max_pool(
    op: Any,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not ceil_mode:
        return NotImplemented  # type: ignore[no-any-return]
    kernel, pad, dilate = _axes(kernel_size, count), _axes(padding, count), _axes(dilation, count)
    step = _axes(stride, count) if stride else kernel
    least = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padded = _padded(x, kernel, step, pad, dilate, least)
    values, places = op(padded, kernel, step, [0] * count, dilate, False)
    # Places count elements of the padded planes: back to coordinates, and to places of the input's planes.
    unit, place = 1, torch.zeros_like(places)
    for axis in reversed(range(count)):
        wide = padded.shape[axis - count]
        rest = torch.div(places, wide, rounding_mode="trunc")
        place = place + (places - rest * wide - pad[axis]) * unit
        unit *= x.shape[axis - count]
        places = rest
    return values, place


def max_pool2d_with_indices(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.max_pool2d_with_indices` in ceil mode into the plain one over an input padded by hand."""
    op = torch.ops.aten.max_pool2d_with_indices.default
    return _max_pool(op, x, kernel_size, stride, padding, dilation, ceil_mode, 2)


def max_pool3d_with_indices(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.max_pool3d_with_indices` in ceil mode into the plain one over an input padded by hand."""
    op = torch.ops.aten.max_pool3d_with_indices.default
    return _max_pool(op, x, kernel_size, stride, padding, dilation, ceil_mode, 3)


def _avg_pool(
    op: Any,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    count: int,
) -> torch.Tensor:
    if not ceil_mode and divisor is None:
        return NotImplemented  # type: ignore[no-any-return]
    kernel, pad = _axes(kernel_size, count), _axes(padding, count)
    step = _axes(stride, count) if stride else kernel
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    ends = [1] * count
    padded = _padded(wide, kernel, step, pad, ends, 0.0) if ceil_mode else _unrounded(wide, pad)
    means: torch.Tensor = op(padded, kernel, step, [0] * count, False, True, None)
    area = math.prod(kernel)
    if divisor is not None:
        return (means * (area / divisor)).to(x.dtype)
    for axis in range(count):
        # The share of each window that lies inside what it is divided by.
        size, margin = x.shape[axis - count], pad[axis] if count_include_pad else 0
        start = torch.arange(means.shape[axis - count], device=x.device) * step[axis] - pad[axis]
        inside = (start + kernel[axis]).clamp(max=size + margin) - start.clamp(min=-margin)
        share = kernel[axis] / inside.to(wide.dtype)
        means = means * share.reshape(-1, *[1] * (count - 1 - axis))
    return means.to(x.dtype)


def _unrounded(x: torch.Tensor, padding: list[int]) -> torch.Tensor:
    return torch.constant_pad_nd(x, [edge for size in reversed(padding) for edge in (size, size)])


def avg_pool2d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """Decompose `aten.avg_pool2d` in ceil mode or with a divisor: means over an input padded by hand, rescaled."""
    op = torch.ops.aten.avg_pool2d.default
    return _avg_pool(op, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


def avg_pool3d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """Decompose `aten.avg_pool3d` in ceil mode or with a divisor: means over an input padded by hand, rescaled."""
    op = torch.ops.aten.avg_pool3d.default
    return _avg_pool(op, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)
