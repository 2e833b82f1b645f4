# SPDX-License-Identifier: Apache-2.0
"""A Llama with a static cache: prefill and decode compile, every cache tensor is updated in place, logits agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager_oracle import DEVICE, compiled

transformers = pytest.importorskip("transformers", reason="the model comes from the demo extra")

LAYERS = 2
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def _model(dtype: torch.dtype) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=96, intermediate_size=192, num_hidden_layers=LAYERS, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _cache(model: Any, dtype: torch.dtype, device: str) -> Any:
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    cache.early_initialization(batch_size=1, num_heads=2, head_dim=16, dtype=dtype, device=device)
    return cache


def _generate(model: Any, cache: Any, prompt: torch.Tensor, device: str) -> list[torch.Tensor]:
    logits, ids, start = [], prompt, 0
    for _ in range(4):
        places = torch.arange(start, start + ids.shape[1], device=device)[None]
        out = model(input_ids=ids.to(device), cache=cache, use_cache=True, position_ids=places)
        logits.append(out.logits[:, -1].float().cpu())
        start += ids.shape[1]
        ids = logits[-1].argmax(-1, keepdim=True)
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_llama(dtype: torch.dtype) -> None:
    model, prompt = _model(dtype), torch.randint(0, 512, (1, 12))
    with torch.no_grad():
        expected = _generate(model, _cache(model, dtype, "cpu"), prompt, "cpu")
        model.to(DEVICE)
        cache = _cache(model, dtype, DEVICE)
        addresses = [t.data_ptr() for layer in cache.layers for t in (layer.keys, layer.values)]
        actual = _generate(compiled(model), cache, prompt, DEVICE)
    assert addresses == [t.data_ptr() for layer in cache.layers for t in (layer.keys, layer.values)]
    for want, got in zip(expected, actual, strict=True):
        torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
