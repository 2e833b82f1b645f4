# SPDX-License-Identifier: Apache-2.0
"""Greedy generation with a static KV cache: one prefill bucket and one decode step, compiled or eager."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Compile = Callable[[nn.Module], Callable[..., Any]]


class StaticKvCache:
    """The key and value cache of a model at a fixed address: batch 1, `length` positions per layer."""

    def __init__(self, config: Any, length: int, dtype: torch.dtype, device: torch.device) -> None:
        from transformers import StaticCache

        self.length = length
        self.layers = StaticCache(config=config, max_cache_len=length)
        # On the device before the first forward: a compiled prefill that creates the cache would return keys and
        # values as new outputs instead of updating them in place.
        self.layers.early_initialization(
            batch_size=1,
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=device,
        )

    def set_filled(self, count: int) -> None:
        """Declares that the first `count` positions hold tokens; what lies behind them is masked, then overwritten."""
        length = torch.tensor(count, dtype=torch.int64)  # a copy, not a fill_: no operator has to run on the device
        for layer in self.layers.layers:
            layer.cumulative_length.copy_(length)


class GreedyStep(nn.Module):
    """One forward pass that updates the cache and returns the next token, int64 [1, 1], and its logits [1, vocab]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, last: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """`ids` is int64 [1, n]; `last` is int64 [1], the position in `ids` whose successor is wanted."""
        output = self.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=last)
        logits = output.logits[:, -1, :]
        return logits.argmax(dim=-1, keepdim=True), logits


@dataclass
class Generation:
    """What one run produced. `logits` has one row per token, in the model's dtype, on the model's device."""

    tokens: list[int]
    logits: list[torch.Tensor]
    prefill_seconds: float
    decode_seconds: float  # for all tokens but the first, which prefill gives
    ended: bool  # the last token is an end token; otherwise the limit was reached

    @property
    def decode_tokens_per_second(self) -> float | None:
        """None when nothing was decoded after the first token."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 else None


class Session:
    """A model and its cache on one device.

    Prefill and decode are separate callables over one cache, so that they can be given to different sessions.

    Args:
        model: a causal language model of transformers, on `device`, in eval mode.
        cache: on the same device and of the same dtype.
        bucket: prompts are padded to this many tokens; None runs each at its own length (eager).
        compile_step: what makes a callable out of a `GreedyStep`; None runs it eagerly.
    """

    def __init__(
        self, model: nn.Module, cache: StaticKvCache, bucket: int | None = None, compile_step: Compile | None = None
    ) -> None:
        self.cache = cache
        self.bucket = bucket
        self.device = next(model.parameters()).device
        make = compile_step or (lambda step: step)
        self._prefill = make(GreedyStep(model))
        self._decode = make(GreedyStep(model))
        self._first = torch.zeros(1, dtype=torch.int64, device=self.device)

    def prefill(self, prompt: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Fills the cache with `prompt` from position 0; returns the next token [1, 1] and logits [1, vocab]."""
        count = len(prompt)
        padding = (self.bucket or count) - count
        if count == 0 or padding < 0 or count > self.cache.length:
            raise ValueError(f"{count} prompt tokens do not fit: bucket {self.bucket}, cache {self.cache.length}")
        # Padding stands behind the prompt, where the causal mask hides it from every real token.
        ids = torch.tensor([[*prompt, *[0] * padding]], dtype=torch.int64).to(self.device)
        last = torch.tensor([count - 1], dtype=torch.int64).to(self.device)
        self.cache.set_filled(0)
        token, logits = self._prefill(ids, last, self.cache.layers)
        if padding:
            self.cache.set_filled(count)  # the pass itself counted the padding
        return token, logits

    def decode(self, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends `token`, int64 [1, 1], to the cache; returns the next token [1, 1] and logits [1, vocab]."""
        return self._decode(token, self._first, self.cache.layers)  # type: ignore[no-any-return]


@torch.no_grad()
def generate(
    session: Session,
    prompt: Sequence[int],
    max_new_tokens: int,
    end_ids: Iterable[int] = (),
    on_token: Callable[[int], None] = lambda token: None,
) -> Generation:
    """Greedy decoding; `on_token` sees each id as soon as it is on the host.

    Raises ValueError when the prompt and `max_new_tokens` do not fit into the cache together.
    """
    if len(prompt) + max_new_tokens > session.cache.length:
        raise ValueError(
            f"{len(prompt)} prompt tokens and {max_new_tokens} new ones do not fit into a cache of "
            f"{session.cache.length} positions"
        )
    end = frozenset(end_ids)
    started = time.perf_counter()
    token, logits = session.prefill(prompt)
    chosen = int(token.item())  # waits for the result
    prefilled = time.perf_counter()
    tokens, rows = [chosen], [logits]
    on_token(chosen)
    while len(tokens) < max_new_tokens and chosen not in end:
        token, logits = session.decode(token)
        chosen = int(token.item())
        tokens.append(chosen)
        rows.append(logits)
        on_token(chosen)
    finished = time.perf_counter()
    return Generation(tokens, rows, prefilled - started, finished - prefilled, chosen in end)


@torch.no_grad()
def replay(session: Session, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
    """Runs the session on a given answer: at each step it sees `tokens` so far, whatever it would have chosen itself.

    The returned tokens are its own choices, one per element of `tokens`.
    """
    started = time.perf_counter()
    token, logits = session.prefill(prompt)
    own, rows = [int(token.item())], [logits]
    prefilled = time.perf_counter()
    for given in tokens[:-1]:
        token, logits = session.decode(torch.tensor([[given]], dtype=torch.int64).to(session.device))
        own.append(int(token.item()))
        rows.append(logits)
    return Generation(own, rows, prefilled - started, time.perf_counter() - prefilled, False)
