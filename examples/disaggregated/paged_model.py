# SPDX-License-Identifier: Apache-2.0
"""A small language model with a paged KV cache, and the free list of its blocks. Any real engine has these two."""

from __future__ import annotations

import torch

from libtorch_neuronx_lite import kv

LAYERS, HEADS, WIDTH, VOCABULARY = 4, 4, 32, 256
BLOCK_TOKENS, BLOCKS = 16, 64


class PagedModel:
    """Greedy decoding with seeded weights: every process that makes one has the same model."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        size = HEADS * WIDTH
        self.embedding = torch.randn(VOCABULARY, size, generator=generator)
        self.head = torch.randn(VOCABULARY, size, generator=generator)
        self.weights = [torch.randn(4, size, size, generator=generator) / size**0.5 for _ in range(LAYERS)]
        # One pool for all layers, so that a peer on this host maps it (provider shm). Tensors on `neuron:0` are
        # registered in the same way.
        self.cache = kv.shared_pool((LAYERS, 2, BLOCKS, BLOCK_TOKENS, HEADS, WIDTH), torch.float32)

    @torch.no_grad()
    def forward(self, tokens: list[int], start: int, blocks: list[int]) -> int:
        """Appends `tokens` at positions from `start` on, whose cache is in `blocks`; returns the next token."""
        positions = torch.arange(start, start + len(tokens))
        x = self.embedding[tokens] + torch.sin(positions[:, None] * torch.linspace(0.01, 1, HEADS * WIDTH))
        where = torch.tensor(blocks)
        mask = torch.arange(start + len(tokens))[None, :] > positions[:, None]
        for layer, (query, key, value, out) in enumerate(self.weights):
            for part, weight in enumerate((key, value)):
                self.cache[layer, part][where[positions // BLOCK_TOKENS], positions % BLOCK_TOKENS] = (x @ weight).view(
                    -1, HEADS, WIDTH
                )
            keys, values = self.cache[layer][:, where].flatten(1, 2)[:, : start + len(tokens)]
            scores = torch.einsum("qhd,khd->hqk", (x @ query).view(-1, HEADS, WIDTH), keys) / WIDTH**0.5
            attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(mask, -1e9).softmax(-1), values)
            x = torch.nn.functional.layer_norm(x + attended.flatten(1) @ out, x.shape[-1:])
        return int((x[-1] @ self.head.T).argmax())


class BlockPool:
    """The free list. A block is taken until whoever uses it, here or at a peer, is certain to be done."""

    def __init__(self) -> None:
        self._free = list(range(BLOCKS))

    def take(self, tokens: int) -> list[int]:
        """Blocks for that many tokens; raises MemoryError when there are too few."""
        count = -(-tokens // BLOCK_TOKENS)
        if count > len(self._free):
            raise MemoryError(f"{count} KV blocks are needed, {len(self._free)} are free")
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give_back(self, blocks: list[int] | tuple[int, ...]) -> None:
        """Makes blocks free again."""
        self._free.extend(blocks)

    @property
    def free(self) -> int:
        """How many are."""
        return len(self._free)
