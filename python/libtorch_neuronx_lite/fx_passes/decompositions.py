# SPDX-License-Identifier: Apache-2.0
"""The decomposition table AOTAutograd traces with: PyTorch's core ATen set, less what makes poor code, plus our own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from . import (
    activations,
    attention,
    creation,
    division,
    embeddings,
    indexing,
    integers,
    linear,
    logical,
    normalization,
    pooling,
    scan,
    shifts,
    transformer,
)

aten = torch.ops.aten

# Kept whole: the rng pass replaces them after tracing, when the seed is an input.
RANDOM = (
    aten.rand,
    aten.rand_like,
    aten.randn,
    aten.randn_like,
    aten.randint,
    aten.randint_like,
    aten.randperm,
    aten.uniform,
    aten.normal,
    aten.normal_functional,
    aten.bernoulli,
    aten.exponential,
    aten.native_dropout,
    aten.multinomial,
)

# Kept whole because torch-mlir's own lowering is better than what the PyTorch decomposition leaves behind.
_WHOLE = (aten.roll, aten.isfinite, aten.eye, aten.split_with_sizes, aten._unsafe_index, aten._unsafe_index_put)

# Not in the core set, and not lowered by torch-mlir.
_EXTRA = (
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit,
    aten.upsample_bilinear2d.vec,
    aten.squeeze.dims,
    aten._euclidean_dist,
    aten.grid_sampler_2d,
    aten.logsumexp,
    aten._log_softmax,
    aten.diag,
    aten.index_select,
    aten.index_add,
    aten.index_fill,
    aten.masked_fill,
    aten.lerp,
    aten.trace,
)

_OWN: dict[Any, Callable[..., Any]] = {
    aten.mean.dim: normalization.mean,
    aten.mean.default: normalization.mean_all,
    aten.var.correction: normalization.var,
    aten.std.correction: normalization.std,
    aten.var_mean.correction: normalization.var_mean,
    aten.native_layer_norm.default: normalization.native_layer_norm,
    aten._fused_rms_norm.default: normalization.rms_norm,
    aten.native_group_norm.default: normalization.native_group_norm,
    aten._native_batch_norm_legit_no_training.default: normalization.batch_norm_inference,
    aten.gelu.default: activations.gelu,
    aten.silu.default: activations.silu,
    aten.mish.default: activations.mish,
    aten.softplus.default: activations.softplus,
    aten.reciprocal.default: integers.reciprocal,
    aten.any.dims: logical.any_dims,
    aten.all.dims: logical.all_dims,
    aten.index_put.default: indexing.index_put,
    aten.diagonal_scatter.default: indexing.diagonal_scatter,
    aten.slice_scatter.default: indexing.slice_scatter,
    aten.as_strided_scatter.default: indexing.as_strided_scatter,
    aten.tril_indices.default: indexing.tril_indices,
    aten.triu_indices.default: indexing.triu_indices,
    aten.index_copy.default: indexing.index_copy,
    aten.masked_scatter.default: indexing.masked_scatter,
    aten.topk.default: indexing.topk,
    aten.div.Tensor_mode: division.divide,
    aten.div.Scalar_mode: division.divide,
    aten.floor_divide.default: division.floor_divide,
    aten.floor_divide.Scalar: division.floor_divide,
    aten.remainder.Tensor: division.remainder,
    aten.remainder.Scalar: division.remainder,
    aten.remainder.Scalar_Tensor: division.remainder,
    aten.max_pool2d_with_indices.default: pooling.max_pool2d_with_indices,
    aten.max_pool3d_with_indices.default: pooling.max_pool3d_with_indices,
    aten.avg_pool2d.default: pooling.avg_pool2d,
    aten.avg_pool3d.default: pooling.avg_pool3d,
    aten.bitwise_right_shift.Tensor: shifts.shift_right,
    aten.bitwise_right_shift.Tensor_Scalar: shifts.shift_right,
    aten.__rshift__.Scalar: shifts.shift_right,
    aten.__rshift__.Tensor: shifts.shift_right,
    aten.cumprod.default: scan.cumprod,
    aten.cummax.default: scan.cummax,
    aten.cummin.default: scan.cummin,
    aten.searchsorted.Tensor: indexing.searchsorted,
    aten.searchsorted.Scalar: indexing.searchsorted,
    aten.bucketize.Tensor: indexing.bucketize,
    aten.bucketize.Scalar: indexing.bucketize,
    aten.scatter_reduce.two: indexing.scatter_reduce,
    aten._cdist_forward.default: indexing.cdist,
    aten._adaptive_avg_pool2d.default: pooling.adaptive_avg_pool,
    aten._adaptive_avg_pool3d.default: pooling.adaptive_avg_pool,
    aten.adaptive_max_pool2d.default: pooling.adaptive_max_pool,
    aten.adaptive_max_pool3d.default: pooling.adaptive_max_pool,
    aten.clamp_min.Tensor: torch.maximum,
    aten.clamp_max.Tensor: torch.minimum,
    aten.abs.default: integers.absolute,
    aten.empty.memory_format: creation.empty,
    aten.empty_strided.default: creation.empty_strided,
    aten.new_empty.default: creation.new_empty,
    aten.empty_like.default: creation.empty_like,
    aten.diagonal.default: indexing.diagonal,
    aten.diagonal_copy.default: indexing.diagonal,
    aten.sort.stable: indexing.sort_stable,
    aten.addmm.default: linear.addmm,
    aten.baddbmm.default: linear.baddbmm,
    aten.addmv.default: linear.addmv,
    aten.linalg_cross.default: linear.linalg_cross,
    aten._embedding_bag.default: embeddings.embedding_bag,
    aten._embedding_bag_forward_only.default: embeddings.embedding_bag,
    aten._transformer_encoder_layer_fwd.default: transformer.transformer_encoder_layer,
    aten._native_multi_head_attention.default: transformer.native_multi_head_attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention.flash_attention_for_cpu,
    aten._scaled_dot_product_attention_math.default: attention.attention_math,
    aten._scaled_dot_product_fused_attention_overrideable.default: attention.attention_overrideable,
}


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return operator overload to decomposition. Built once a process: the core set takes a moment to collect."""
    kept = {*RANDOM, *_WHOLE}
    table: dict[Any, Callable[..., Any]] = {
        op: function
        for op, function in core_aten_decompositions().items()  # type: ignore[no-untyped-call]
        if getattr(op, "overloadpacket", op) not in kept
    }
    table.update(get_decompositions(list(_EXTRA)))
    table.update(_OWN)
    return table
