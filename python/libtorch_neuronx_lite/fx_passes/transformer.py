# SPDX-License-Identifier: Apache-2.0
"""The fused operators that torch.nn's transformer modules call in eval mode, as the layers they stand for."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from .attention import scaled_dot_product_attention


def _hidden(mask: torch.Tensor, mask_type: int | None, rows: int) -> torch.Tensor:
    """Return a bool mask that broadcasts to [batch, heads, rows, columns], true where a score must not be seen."""
    hidden = mask.to(torch.bool)  # so does the CPU kernel: an additive mask hides wherever it is not zero
    if mask_type == 1:  # keys that are padding: [batch, columns]
        return hidden[:, None, None, :]
    return hidden.reshape(1, 1, rows, -1) if mask_type == 0 else hidden


def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decompose `aten._native_multi_head_attention`.

    query, key and value are [batch, tokens, embed_dim]. Returns the result of query's shape, and the weights
    [batch, rows, columns], averaged over heads or with the heads as dimension 1; None unless `need_weights`.
    """
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        functional.linear(x, weight, bias).reshape(*x.shape[:-1], num_head, embed_dim // num_head).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    hidden = None if mask is None else _hidden(mask, mask_type, query.shape[1])
    out = scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden)
    out = functional.linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-1, -2)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    shares = scores.softmax(-1)
    return out, shares.mean(1) if average_attn_weights else shares


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose `aten._transformer_encoder_layer_fwd`; src and the result are [batch, tokens, embed_dim]."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        out, _ = native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )
        return out

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        wide = functional.linear(x, ffn_weight_1, ffn_bias_1)
        wide = functional.gelu(wide) if use_gelu else functional.relu(wide)
        return functional.linear(wide, ffn_weight_2, ffn_bias_2)

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))
