# SPDX-License-Identifier: Apache-2.0
"""A decoder of Llama's architecture with a static cache, small enough to interpret, as StableHLO from torch-mlir."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of one call."""

    layers: int = 2
    hidden: int = 16
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 24
    vocabulary: int = 32
    cache: int = 12
    tokens: int = 3

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


def parameters(shape: Shape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return random weights: embedding, then per layer norm, q, k, v, o, norm, gate, up, down, then the last norm."""
    h, kv = shape.hidden, shape.kv_heads * shape.head
    sizes = [(shape.vocabulary, h)]
    for _ in range(shape.layers):
        sizes += [(h,), (h, h), (kv, h), (kv, h), (h, h), (h,), (shape.mlp, h), (shape.mlp, h), (h, shape.mlp)]
    sizes.append((h,))
    return [(torch.randn(size) * 0.3).to(dtype) for size in sizes]


def caches(shape: Shape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return zeroed keys and values of every layer."""
    return [torch.zeros(1, shape.kv_heads, shape.cache, shape.head, dtype=dtype) for _ in range(2 * shape.layers)]


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    frequency = 1.0 / (10000.0 ** (torch.arange(half, dtype=torch.int64).float() / half))
    angle = (positions.float()[:, None] * frequency[None, :]).repeat(1, 2)
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def forward(shape: Shape, ids: torch.Tensor, positions: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return logits of the last token, the argmax, and every updated cache."""
    old = tensors[: 2 * shape.layers]
    weights = iter(tensors[2 * shape.layers :])
    embedding = next(weights)
    x = embedding[ids]
    new: list[torch.Tensor] = []
    mask = torch.arange(shape.cache)[None, :] <= positions[:, None]
    bias = torch.where(mask, 0.0, float("-inf"))
    for layer in range(shape.layers):
        norm1, q, k, v, o, norm2, gate, up, down = (next(weights) for _ in range(9))
        h = _norm(x, norm1)

        def split(y: torch.Tensor, heads: int) -> torch.Tensor:
            return y.view(1, shape.tokens, heads, shape.head).transpose(1, 2)

        query = _rotate(split(h @ q.T, shape.heads), positions)
        keys = old[2 * layer].index_copy(2, positions, _rotate(split(h @ k.T, shape.kv_heads), positions))
        values = old[2 * layer + 1].index_copy(2, positions, split(h @ v.T, shape.kv_heads))
        new += [keys, values]
        groups = shape.heads // shape.kv_heads
        all_keys = keys[:, :, None].expand(-1, -1, groups, -1, -1).reshape(1, shape.heads, shape.cache, shape.head)
        all_values = values[:, :, None].expand(-1, -1, groups, -1, -1).reshape(1, shape.heads, shape.cache, shape.head)
        scores = query @ all_keys.transpose(2, 3) * shape.head**-0.5
        attention = torch.softmax(scores.float() + bias, -1).to(x.dtype) @ all_values
        x = x + attention.transpose(1, 2).reshape(1, shape.tokens, shape.hidden) @ o.T
        h = _norm(x, norm2)
        x = x + (torch.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T
    logits = (_norm(x, next(weights))[:, -1] @ embedding.T).float()
    return [logits, logits.argmax(-1), *new]


def arguments(shape: Shape, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the arguments of one call."""
    ids = torch.randint(0, shape.vocabulary, (1, shape.tokens))
    positions = torch.arange(shape.tokens) + 2
    return [ids, positions, *caches(shape, dtype), *parameters(shape, dtype)]


def stablehlo(shape: Shape, example: list[torch.Tensor]) -> bytes:
    """Return the call as MLIR bytecode whose caches are aliased: output 2 + i is input 2 + i."""
    from torch_mlir import ir
    from torch_mlir.compiler_utils import OutputType
    from torch_mlir.fx import stateless_fx_import

    graph = make_fx(lambda *a: forward(shape, *a), decomposition_table=core_aten_decompositions())(*example)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    output.args = (tuple(_pytree.tree_leaves(output.args[0])),)
    graph.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the importer's own deprecations
        module = stateless_fx_import(graph, output_type=OutputType.STABLEHLO)
    function = module.body.operations[0]
    with module.context:
        number = ir.IntegerType.get_signless(32)
        aliased = range(2, 2 + 2 * shape.layers)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([
            ir.DictAttr.get({"tf.aliasing_output": ir.IntegerAttr.get(number, i)} if i in aliased else {})
            for i in range(len(function.regions[0].blocks[0].arguments))
        ])  # fmt: skip
        stream = io.BytesIO()
        module.operation.write_bytecode(stream)
    return stream.getvalue()
