# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention in every form that models use, against CPU eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_oracle import BFLOAT16, FLOAT32, check, compiled, to_device

sdpa = F.scaled_dot_product_attention
TOLERANCE = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def _heads(dtype: torch.dtype, heads: int = 4, rows: int = 6) -> torch.Tensor:
    return torch.randn(2, heads, rows, 8).to(dtype)


def test_plain(dtype: torch.dtype) -> None:
    check(lambda q, k, v: sdpa(q, k, v), _heads(dtype, rows=3), _heads(dtype), _heads(dtype), **TOLERANCE[dtype])


def test_causal(dtype: torch.dtype) -> None:
    check(lambda q, k, v: sdpa(q, k, v, is_causal=True), *(_heads(dtype) for _ in range(3)), **TOLERANCE[dtype])


def test_grouped_heads(dtype: torch.dtype) -> None:
    q, k, v = _heads(dtype), _heads(dtype, heads=2), _heads(dtype, heads=2)
    check(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), q, k, v, **TOLERANCE[dtype])
    mask = torch.rand(2, 1, 6, 6) > 0.2
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m, enable_gqa=True), q, k, v, mask, **TOLERANCE[dtype])


def test_masks_and_scale(dtype: torch.dtype) -> None:
    q, k, v = (_heads(dtype) for _ in range(3))
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m, scale=0.2), q, k, v, torch.rand(6, 6) > 0.3, **TOLERANCE[dtype])
    check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, torch.randn(6, 6).to(dtype), **TOLERANCE[dtype])


def test_a_row_that_the_mask_empties_gives_zeros() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    check(lambda q, m: sdpa(q, q, q, attn_mask=m), _heads(torch.float32), mask)


def test_three_dimensions() -> None:
    check(lambda q: sdpa(q, q, q), torch.randn(4, 6, 8))


def test_multi_head_attention_module() -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    weights = [parameter.detach() for parameter in module.parameters()]

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, ow: torch.Tensor, ob: torch.Tensor) -> torch.Tensor:
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, w, b, None, None, False, 0.0, ow, ob, training=False, need_weights=False
        )[0]

    check(forward, torch.randn(5, 2, 8), *weights)


@pytest.mark.parametrize("enabled", [True, False])
def test_repeated_heads_are_read_as_groups(enabled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from libtorch_neuronx_lite.compile import backend

    def repeat(x: torch.Tensor, groups: int) -> torch.Tensor:
        batch, heads, rows, width = x.shape
        return x[:, :, None, :, :].expand(batch, heads, groups, rows, width).reshape(batch, heads * groups, rows, width)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return sdpa(q, repeat(k, 2), repeat(v, 2), attn_mask=mask)

    texts: list[str] = []
    lower = backend.lower_graph

    def recorded(*args: Any, **kwargs: Any) -> Any:
        prepared, lowered = lower(*args, **kwargs)
        texts.append(lowered.stablehlo.text())
        return prepared, lowered

    monkeypatch.setattr(backend, "lower_graph", recorded)
    args = (_heads(dtype), _heads(dtype, heads=2), _heads(dtype, heads=2), torch.rand(2, 1, 6, 6) > 0.3)
    with torch.no_grad():
        run = compiled(f, options={"enable_fx_passes": enabled})
        got = run(*to_device(args)).cpu()
    torch.testing.assert_close(got, f(*args), **TOLERANCE[dtype])
    assert ("2x2x2x6x8" in texts[0]) is not enabled  # the repeated keys
