# SPDX-License-Identifier: Apache-2.0
"""Adaptive pooling over windows known at tracing, and the sizes rounded up that torch-mlir gets wrong."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .editing import Editor, fake_mode_of
from .widening import widen


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
    wide = widen(x)
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


def find_places(gm: fx.GraphModule) -> None:
    """Compute the places of maxima that the graph reads from the pooling's input, in place.

    torch-mlir lowers the values of a max pooling to a window reduction that every target has, but not their places.
    Poolings in ceil mode were decomposed while tracing.
    """
    mode = fake_mode_of(gm.graph)
    for node in list(gm.graph.nodes):
        count = _PLACED.get(node.target)
        if count is None:
            continue
        for user in list(node.users):
            if user.args[1] == 1:
                x, *window = node.args
                places = functools.partial(_places, count, window)
                user.replace_all_uses_with(Editor(gm.graph, mode, user).inline(places, [x], {}))


_PLACED = {
    torch.ops.aten.max_pool2d_with_indices.default: 2,
    torch.ops.aten.max_pool3d_with_indices.default: 3,
}


def _places(count: int, window: Sequence[Any], x: torch.Tensor) -> torch.Tensor:
    """Return where each window's maximum lies in its plane, int64: the first of equal ones, the last of NaNs."""
    kernel = _axes(window[0], count)
    step = _axes(window[1], count) if len(window) > 1 and window[1] else kernel
    pad = _axes(window[2] if len(window) > 2 else (0,), count)
    dilate = _axes(window[3] if len(window) > 3 else (1,), count)
    sizes = x.shape[-count:]
    edges = [edge for size in reversed(pad) for edge in (size, size)]
    least = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    values = torch.constant_pad_nd(x, edges, least)
    places = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    places = torch.constant_pad_nd(places, edges, -1)
    candidates = []
    for offset in itertools.product(*map(range, kernel)):
        value, here = values, places
        for axis in range(count):
            start = offset[axis] * dilate[axis]
            last = (sizes[axis] + 2 * pad[axis] - dilate[axis] * (kernel[axis] - 1) - 1) // step[axis] * step[axis]
            span = (axis - count, start, start + last + 1, step[axis])
            value, here = torch.ops.aten.slice.Tensor(value, *span), torch.ops.aten.slice.Tensor(here, *span)
        candidates.append((value, here))
    return _greatest(candidates)[1]


def _greatest(candidates: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest of the candidates' values and its place, as PyTorch's CPU kernel scans a window.

    Of equal values the first counts, of NaNs the last; a place of -1 is padding and gives way to any other.
    """
    top, place = candidates[0]
    place = place.expand(top.shape)
    for value, here in candidates[1:]:
        better = (value > top) | (value != value) | ((place < 0) & (here >= 0))
        top, place = torch.where(better, value, top), torch.where(better, here, place)
    return top, place


def adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.adaptive_max_pool2d` and `adaptive_max_pool3d` into maxima and their places.

    Window i of an axis covers floor(i * n / out) to ceil((i + 1) * n / out); shorter ones see their last element again.
    """
    count = len(output_size)
    sizes = x.shape[-count:]
    if all(size % out == 0 for size, out in zip(sizes, output_size, strict=True)):
        op = getattr(torch.ops.aten, f"max_pool{count}d_with_indices").default
        pooled: tuple[torch.Tensor, torch.Tensor] = op(x, [n // out for n, out in zip(sizes, output_size, strict=True)])
        return pooled
    positions = []  # per axis [out, longest window]
    for size, out in zip(sizes, output_size, strict=True):
        i = torch.arange(out, device=x.device)
        start = torch.div(i * size, out, rounding_mode="floor")
        end = torch.div((i + 1) * size + out - 1, out, rounding_mode="floor")
        longest = max(-(-(i + 1) * size // out) - i * size // out for i in range(out))
        positions.append(
            torch.minimum(start.unsqueeze(1) + torch.arange(longest, device=x.device), end.unsqueeze(1) - 1)
        )
    places = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    candidates = []
    for offset in itertools.product(*(range(axis.shape[1]) for axis in positions)):
        value, here = x, places
        for axis, chosen in enumerate(offset):
            index = positions[axis][:, chosen]
            value, here = value.index_select(axis - count, index), here.index_select(axis - count, index)
        candidates.append((value, here))
    return _greatest(candidates)


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
    wide = widen(x)
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
