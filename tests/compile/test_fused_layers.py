# SPDX-License-Identifier: Apache-2.0
"""Operators that stand for whole layers, and those with results of two kinds, give CPU eager's values compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_oracle import check, compiled
from torch import nn

BAGS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "rows of indices": lambda i, w: [F.embedding_bag(i.view(4, 3), w, mode=mode) for mode in ("sum", "mean", "max")],
    "offsets, one bag empty": lambda i, w: [
        F.embedding_bag(i, w, torch.tensor([0, 3, 3, 7], device=i.device), mode=mode) for mode in ("sum", "mean", "max")
    ],
    "the last offset": lambda i, w: F.embedding_bag(
        i, w, torch.tensor([0, 5, 12], device=i.device), mode="sum", include_last_offset=True
    ),
    "padding": lambda i, w: [F.embedding_bag(i.view(3, 4), w, mode=m, padding_idx=2) for m in ("sum", "mean", "max")],
    "weights of samples": lambda i, w: F.embedding_bag(
        i.view(3, 4), w, mode="sum", per_sample_weights=(i.view(3, 4) + 1).to(w.dtype)
    ),
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings(name: str) -> None:
    check(BAGS[name], torch.randint(0, 6, (12,)), torch.randn(6, 4))


def test_a_bag_keeps_what_is_not_finite_to_itself() -> None:
    weight = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [torch.inf, -1.0]])
    check(lambda i, w: F.embedding_bag(i, w, mode="sum"), torch.tensor([[0, 0], [1, 0], [2, 0]]), weight)


def test_a_bag_of_bfloat16_is_summed_in_float32() -> None:
    weight = torch.randn(50, 8).bfloat16()
    check(lambda i, w: F.embedding_bag(i, w, mode="sum"), torch.randint(0, 50, (3, 40)), weight, rtol=8e-3, atol=8e-3)


POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "even": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "overlapping and padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), 1, dilation=2, return_indices=True),
    "ceil mode": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
    "adaptive, uneven": lambda x: F.adaptive_max_pool2d(x, (5, 2), return_indices=True),
    "one dimension": lambda x: F.max_pool1d(x.flatten(2), 4, 3, 2, return_indices=True),
    "three dimensions": lambda x: F.max_pool3d(x.unsqueeze(1), 2, return_indices=True),
    "and back": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_with_places(name: str) -> None:
    check(POOLS[name], torch.randn(2, 3, 8, 9)[..., :8].contiguous() if name == "and back" else torch.randn(2, 3, 8, 9))


def test_places_of_equal_and_of_special_values() -> None:
    x = torch.randint(0, 2, (1, 2, 6, 6)).float()
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = torch.nan
    x[0, 1] = -torch.inf
    check(POOLS["overlapping and padded"], x)


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
def test_transformer_encoder_layer(norm_first: bool, mask: str) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, norm_first=norm_first, activation="gelu" if norm_first else "relu"
    ).eval()
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if mask in ("padding", "both") else None
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1) if mask in ("causal", "both") else None
    with torch.no_grad():
        want = layer(x, src_mask=causal, src_key_padding_mask=padding)
        moved = layer.to("neuron:0")
        causal, padding = (None if m is None else m.to("neuron:0") for m in (causal, padding))
        got = compiled(moved, fullgraph=True)(x.to("neuron:0"), src_mask=causal, src_key_padding_mask=padding)
    torch.testing.assert_close(got.cpu(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("average", [False, True], ids=["by head", "averaged"])
def test_attention_module_with_weights(average: bool) -> None:
    module = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)

    def attend(x: torch.Tensor) -> Any:
        return module(x, x, x, need_weights=True, average_attn_weights=average)

    with torch.no_grad():
        want = attend(x)
        module.to("neuron:0")
        got = compiled(attend, fullgraph=True)(x.to("neuron:0"))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=2e-5, atol=2e-5)
