# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings as a gather and a scatter over bag numbers, with sums in f32 for narrow floats."""

from __future__ import annotations

import torch

from .widening import widen

_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decompose `aten._embedding_bag` and `_embedding_bag_forward_only`.

    weight is [rows, D], indices [N], offsets [bags] (or [bags + 1] with the end of the last bag). Returns the bags
    [bags, D], the bag of each index [N], the size of each bag [bags], and for mode max the winning index [bags, D].
    """
    bags, count = offsets.shape[0] - include_last_offset, indices.shape[0]
    place = torch.arange(count, dtype=offsets.dtype, device=indices.device)
    bag = (offsets.unsqueeze(0) <= place.unsqueeze(1)).sum(1) - 1
    # What belongs to no bag, and padding, is collected in one more row that is cut off at the end.
    counted = torch.where((indices == padding_idx) | (bag >= bags), torch.full_like(bag, bags), bag)
    rows = widen(weight.index_select(0, indices))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(rows.dtype).unsqueeze(1)
    sizes = torch.zeros(bags + 1, dtype=torch.int64, device=indices.device)
    sizes = sizes.index_add(0, counted, torch.ones_like(bag))[:bags]
    winners = torch.zeros((bags, weight.shape[1]) if mode == _MAX else (0,), dtype=torch.int64, device=indices.device)
    out = torch.zeros((bags + 1, weight.shape[1]), dtype=rows.dtype, device=rows.device)
    if mode == _MAX:
        column = counted.unsqueeze(1).expand(count, weight.shape[1])
        out = out.scatter_reduce(0, column, rows, "amax", include_self=False)
        first = torch.where(rows == out.index_select(0, counted), place.unsqueeze(1), count)
        first = torch.full_like(out, count, dtype=place.dtype).scatter_reduce(0, column, first, "amin")
        chosen = indices.index_select(0, first[:bags].clamp(max=count - 1).flatten()).reshape(winners.shape)
        winners = torch.where(sizes.unsqueeze(1) > 0, chosen.to(torch.int64), winners)
        out = out[:bags]
    else:
        out = out.index_add(0, counted, rows)[:bags]
        if mode == _MEAN:
            out = out / sizes.clamp(min=1).unsqueeze(1)
    return out.to(weight.dtype), bag, sizes, winners
