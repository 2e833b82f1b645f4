# SPDX-License-Identifier: Apache-2.0
"""Indexed reads and writes in the forms that lower to one gather or one scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Decompose `aten.index_put` with one mask into a select; with index tensors it stays."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return NotImplemented  # type: ignore[no-any-return]
    dim, mask = given[0]
    behind = x.shape[dim + mask.dim() :]
    chosen = mask.reshape(*mask.shape, *[1] * len(behind))
    if values.dim() > len(behind) and values.shape[values.dim() - len(behind) - 1] != 1:
        # One value for each true element, in order; dimensions before the mask come first in both.
        if x.numel() == 0 or values.numel() == 0:
            return x.clone()
        count = values.shape[values.dim() - len(behind) - 1]
        place = (torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1).clamp(0, count - 1)
        values = values.expand(*x.shape[:dim], count, *behind)
        values = torch.index_select(values, dim, place).reshape(x.shape)
    elif values.dim() > len(behind):
        # [..., 1, *behind]: the one row stands for every true element.
        row = values.dim() - len(behind) - 1
        values = values.reshape(*values.shape[:row], *[1] * mask.dim(), *values.shape[row + 1 :])
    return torch.where(chosen, x + values if accumulate else values, x)


def diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Decompose `aten.diagonal_scatter` into `index_put` at the diagonal's places."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    places = torch.arange(source.shape[-1], device=x.device)
    moved = x.movedim((dim1, dim2), (0, 1))
    indices = [places + max(-offset, 0), places + max(offset, 0)]
    written = aten._unsafe_index_put.default(moved, indices, source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))  # type: ignore[no-any-return]


def slice_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    """Decompose `aten.slice_scatter` into `index_put`: torch-mlir's passes do not end on some of its uses."""
    dim %= x.dim()
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    if (start, step) == (0, 1) and end >= x.shape[dim]:
        return source.expand(x.shape).clone()
    places = torch.arange(start, max(start, end), step, device=x.device)
    indices: list[torch.Tensor | None] = [None] * dim + [places]
    return aten._unsafe_index_put.default(x, indices, source)  # type: ignore[no-any-return]


def _strided_places(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> torch.Tensor:
    """Return for each element of a window on `x`'s memory its place among `x`'s own elements."""
    first = 0 if offset is None else int(offset - x.storage_offset())
    places = torch.full((), first, dtype=torch.int64, device=x.device)
    for count, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(count, device=x.device) * step
    return places


def as_strided_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Decompose `aten.as_strided_scatter` on a contiguous tensor: writes through views that overlap end in one."""
    if not x.is_contiguous():
        return NotImplemented  # type: ignore[no-any-return]
    places = _strided_places(x, size, stride, storage_offset)
    return aten._unsafe_index_put.default(x.reshape(-1), [places], source).reshape(x.shape)  # type: ignore[no-any-return]


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    """Decompose `aten.tril_indices`."""
    rows = torch.arange(row, device=device)
    counts = (rows + (offset + 1)).clamp(0, col)
    total = sum(min(max(i + offset + 1, 0), col) for i in range(row))
    return _places(counts, torch.zeros_like(counts), total).to(dtype or torch.int64)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    """Decompose `aten.triu_indices`."""
    starts = (torch.arange(row, device=device) + offset).clamp(0, col)
    total = sum(col - min(max(i + offset, 0), col) for i in range(row))
    return _places(col - starts, starts, total).to(dtype or torch.int64)


def _places(counts: torch.Tensor, starts: torch.Tensor, total: int) -> torch.Tensor:
    """Return [2, total]: row and column of each place, `counts[i]` of them in row i from column `starts[i]` on."""
    place = torch.arange(total, device=counts.device)
    ends = torch.cumsum(counts, 0)
    row = (place.unsqueeze(1) >= ends).sum(1)
    column = place + torch.index_select(starts + counts - ends, 0, row)
    return torch.stack((row, column))


def index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.index_copy` into `index_put`; eager refuses an index below zero."""
    if x.dim() == 0:
        return aten._unsafe_index_put.default(x.unsqueeze(0), [index.reshape(-1)], source.reshape(-1)).squeeze(0)  # type: ignore[no-any-return]
    dim %= x.dim()
    indices: list[torch.Tensor | None] = [None] * dim + [index.reshape(-1)]
    return aten._unsafe_index_put.default(x, indices, source)  # type: ignore[no-any-return]


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Decompose `aten.masked_scatter`: the n-th true element takes the n-th element of source."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    mask, x = mask.expand(shape), x.expand(shape)
    if source.numel() == 0 or x.numel() == 0:
        return x.clone()
    position = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    position = position.clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1)[position].reshape(shape), x)


def diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """Decompose `aten.diagonal` (a view, in a graph without mutation just a read) into one gather."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[dim1], x.shape[dim2]
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    places = torch.arange(count, device=x.device)
    moved = x.movedim((dim1, dim2), (0, 1))
    return moved[places + max(-offset, 0), places + max(offset, 0)].movedim(0, -1)


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.topk` into a sort (stable once lowered) and a slice; indices are int64."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, indices = aten.sort.default(x, dim, largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten.sort.stable` into the form torch-mlir knows; the lowering makes every sort stable."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return aten.sort.default(x, dim, descending)  # type: ignore[no-any-return]


def argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """Decompose `aten.argsort`."""
    return sort_stable(x, dim=dim, descending=descending)[1]


def searchsorted(
    sequence: torch.Tensor,
    x: torch.Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decompose `aten.searchsorted` into a count of the boundaries below each value."""
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    if not isinstance(x, torch.Tensor):
        x = torch.full((), x, dtype=sequence.dtype, device=sequence.device)
    if sequence.dim() > 1:
        boundaries, values = sequence.unsqueeze(-2), x.unsqueeze(-1)
    else:
        boundaries, values = sequence, x.unsqueeze(-1)
    below = boundaries <= values if right or side == "right" else boundaries < values
    return below.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(
    x: torch.Tensor | float, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Decompose `aten.bucketize`."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Decompose `aten.scatter_reduce.two` into a masked reduction over the scattered dimension.

    The reduction is dense (target size times index size along `dim`): the sparse form has no lowering for every
    kind.
    """
    if reduce == "sum" and include_self:
        return x.scatter_add(dim, index, source)
    if x.dim() == 0:
        return scatter_reduce(
            x.unsqueeze(0), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self
        ).squeeze(0)
    dim %= x.dim()
    window = tuple(slice(0, size) for size in index.shape)
    source = source[window]
    # [..., index size, target size] with the reduced dimension next to last.
    places = torch.arange(x.shape[dim], device=x.device, dtype=index.dtype)
    hits = index.movedim(dim, -1).unsqueeze(-1) == places
    values = source.movedim(dim, -1).unsqueeze(-1)
    start: Any = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
    if start is None:
        info = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
        top, bottom = (torch.inf, -torch.inf) if x.dtype.is_floating_point else (info.max, info.min)
        start = bottom if reduce == "amax" else top
    filled = torch.where(hits, values, torch.full((), start, dtype=x.dtype, device=x.device))
    count = hits.sum(-2)
    reductions: dict[str, Any] = {"sum": lambda t: t.sum(-2), "mean": lambda t: t.sum(-2), "prod": lambda t: t.prod(-2),
                "amax": lambda t: t.amax(-2), "amin": lambda t: t.amin(-2)}  # fmt: skip
    combined = reductions[reduce](filled)
    # The target may be larger than the index in the other dimensions: those places keep their value.
    base = x.movedim(dim, -1)
    part = base[tuple(slice(0, size) for size in combined.shape)]
    if include_self:
        merge: dict[str, Any] = {
            "sum": torch.add,
            "mean": torch.add,
            "prod": torch.mul,
            "amax": torch.maximum,
            "amin": torch.minimum,
        }
        combined, count = merge[reduce](combined.to(x.dtype), part), count + 1
    if reduce == "mean":
        divisor = count.clamp(min=1)
        combined = (
            combined / divisor if x.dtype.is_floating_point else torch.div(combined, divisor, rounding_mode="floor")
        )
    combined = torch.where(count > (1 if include_self else 0), combined.to(x.dtype), part)
    for axis in reversed(range(x.dim() - 1)):
        lead = base[tuple(slice(0, size) for size in combined.shape[:axis])]
        combined = lead.slice_scatter(combined, axis, 0, combined.shape[axis])
    return combined.movedim(-1, dim)


def cdist(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """Decompose `aten._cdist_forward`: the p-norm of every difference of two rows."""
    difference = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if p == 1:
        return difference.sum(-1)
    if p == 0:
        return (difference != 0).sum(-1).to(a.dtype)
    if p == float("inf"):
        return difference.amax(-1)
    return (difference**p).sum(-1) ** (1.0 / p)
