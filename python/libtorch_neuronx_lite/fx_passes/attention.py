# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention as two batched products with f32 scores, the way PyTorch's CPU kernel computes it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return softmax(query @ key^T * scale + mask) @ value.

    query is [..., heads, L, E], key [..., key heads, S, E], value [..., key heads, S, V]; the result is
    [..., heads, L, V] in query's dtype. Grouped heads are folded into the rows of the products, so keys and values are
    read once and never repeated. Scores and the softmax are f32; a row that the mask empties gives zeros. The weights
    are rounded to value's dtype before the second product, as the flash kernel for the CPU does.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal exclude each other")
    dtype = query.dtype
    rows, width = query.shape[-2], query.shape[-1]
    columns, value_width = key.shape[-2], value.shape[-1]
    scale = 1.0 / math.sqrt(width) if scale is None else scale

    lead = torch.broadcast_shapes(key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    grouped = enable_gqa and query.dim() >= 3 and query.shape[-3] != lead[-1]
    if grouped:
        groups = query.shape[-3] // lead[-1]
        query_lead = (*torch.broadcast_shapes(query.shape[:-3], lead[:-1]), query.shape[-3])  # type: ignore[no-untyped-call]
        lead = (*query_lead[:-1], lead[-1])
    else:
        groups = 1
        lead = query_lead = torch.broadcast_shapes(query.shape[:-2], lead)  # type: ignore[no-untyped-call]
    batch = math.prod(lead)
    if columns == 0:  # nothing to attend to
        return torch.zeros((*query_lead, rows, value_width), dtype=dtype, device=query.device)

    q = query.expand(*query_lead, rows, width).reshape(batch, groups * rows, width)
    k = key.expand(*lead, columns, width).reshape(batch, columns, width).transpose(1, 2)
    v = value.expand(*lead, columns, value_width).reshape(batch, columns, value_width)
    scores = torch.bmm(q.float(), k.float()) * scale
    scores = scores.reshape(*query_lead, rows, columns)

    if is_causal:
        row = torch.arange(rows, device=query.device, dtype=torch.int32).unsqueeze(1)
        column = torch.arange(columns, device=query.device, dtype=torch.int32).unsqueeze(0)
        attn_mask = column <= row
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, torch.full((), -math.inf, dtype=torch.float32, device=query.device))
        else:
            scores = scores + attn_mask.float()

    top = scores.amax(-1, keepdim=True)
    if attn_mask is not None:
        top = torch.where(top == -math.inf, torch.zeros((), dtype=torch.float32, device=query.device), top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if attn_mask is not None:
        total = torch.where(total == 0, torch.ones((), dtype=torch.float32, device=query.device), total)
    if dropout_p > 0.0:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    weights = weights.to(v.dtype).reshape(batch, groups * rows, columns)
    out = torch.bmm(weights.float(), v.float()).reshape(*query_lead, rows, value_width)
    return (out / total).to(dtype)


def replace_attention(gm: fx.GraphModule) -> None:
    """Point the attention calls of a Dynamo graph at our form, before PyTorch picks a kernel for the device.

    Which fused operator PyTorch dispatches to depends on the device; from here it does not.
    """
    changed = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _ATTENTION:
            node.target = scaled_dot_product_attention
            changed = True
    if changed:
        gm.recompile()


_ATTENTION: tuple[Any, ...] = (
    torch._C._nn.scaled_dot_product_attention,
    torch.nn.functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


def flash_attention_for_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten._scaled_dot_product_flash_attention_for_cpu`; its log-sum-exp is read by gradients only."""
    out = scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    return out, query.new_zeros(query.shape[:-1], dtype=torch.float32)


def attention_math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose `aten._scaled_dot_product_attention_math`; its weights are read by gradients only."""
    out = scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out, query.new_zeros((*query.shape[:-1], key.shape[-2]))


def attention_overrideable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:
    """Decompose `aten._scaled_dot_product_fused_attention_overrideable`, the form private devices dispatch to."""
    out = scaled_dot_product_attention(
        query, key, value, attn_bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    seed = query.new_zeros((), dtype=torch.int64)
    logsumexp = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    return out, logsumexp, None, None, query.shape[-2], key.shape[-2], seed, seed, query.new_zeros(())
