# SPDX-License-Identifier: Apache-2.0
"""Generation over a static cache: eager on the CPU, and compiled on neuron:0, with a small model of the same kind."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

pytest.importorskip("transformers", reason="the demo's extra is not installed")

from libtorch_neuronx_lite.cli.demo.compiled import CompiledSession, eager_session
from libtorch_neuronx_lite.cli.demo.generation import Session, StaticKvCache, generate, replay
from libtorch_neuronx_lite.cli.demo.model import ByteCodec, LoadedModel

CACHE_LENGTH = 48
BUCKET = 16
PROMPTS = ([1], [5, 6, 7], list(range(2, 2 + BUCKET)))


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return LoadedModel("small", LlamaForCausalLM(config).eval(), ByteCodec())


@pytest.fixture(scope="module")
def compiled(small: LoadedModel) -> CompiledSession:
    device = torch.device("neuron", 0)
    return CompiledSession(small, device, torch.float32, bucket=BUCKET, cache_length=CACHE_LENGTH)


def _eager(small: LoadedModel, bucket: int | None = None) -> Session:
    cache = StaticKvCache(small.config, CACHE_LENGTH, torch.float32, torch.device("cpu"))
    return Session(copy.deepcopy(small.module), cache, bucket)


def _by_hand(small: LoadedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding without any cache: the whole sequence through the model at each step."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(small.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
@pytest.mark.parametrize("bucket", [None, BUCKET])
def test_eager_equals_decoding_without_a_cache(small: LoadedModel, prompt: list[int], bucket: int | None) -> None:
    answer = generate(_eager(small, bucket), prompt, 12)
    assert answer.tokens == _by_hand(small, prompt, 12)
    assert len(answer.logits) == 12
    assert answer.decode_tokens_per_second is not None


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_compiled_equals_eager(small: LoadedModel, compiled: CompiledSession, prompt: list[int]) -> None:
    answer = generate(compiled.session, prompt, 12)
    eager = generate(_eager(small), prompt, 12)
    assert answer.tokens == eager.tokens
    for ours, theirs in zip(answer.logits, eager.logits, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def test_compiling_gives_one_executable_per_step(compiled: CompiledSession) -> None:
    assert set(compiled.neff_bytes) == {"prefill", "decode"}
    assert all(size > 1024 for size in compiled.neff_bytes.values())
    assert 0 < compiled.after_aot_seconds < compiled.compile_seconds
    assert compiled.runtime == "host"


def test_a_step_updates_the_cache_in_place_and_takes_no_memory(compiled: CompiledSession) -> None:
    layers = compiled.session.cache.layers.layers
    addresses = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers]
    generate(compiled.session, [5, 6, 7], 4)
    torch.neuron.synchronize()
    before = compiled.device_memory_bytes()
    answer = generate(compiled.session, [5, 6, 7], 4)
    torch.neuron.synchronize()
    assert [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers] == addresses
    assert compiled.device_memory_bytes() == before
    assert [int(layer.cumulative_length) for layer in layers] == [3 + len(answer.tokens) - 1] * len(layers)


def test_generation_runs_no_eager_operator(compiled: CompiledSession) -> None:
    before = torch.neuron.fallback_total()
    generate(compiled.session, [9, 8], 6)
    assert torch.neuron.fallback_total() == before


def test_replay_sees_the_given_answer(small: LoadedModel) -> None:
    session = eager_session(small, torch.float32, CACHE_LENGTH)
    given = [11, 12, 13]
    own = replay(session, [1, 2], given)
    assert own.tokens == [_by_hand(small, [1, 2, *given[:count]], 1)[0] for count in range(3)]


def test_an_end_token_ends_the_answer(small: LoadedModel) -> None:
    tokens = generate(_eager(small), [1], 12).tokens
    seen: list[int] = []
    answer = generate(_eager(small), [1], 12, end_ids={tokens[3]}, on_token=seen.append)
    assert answer.tokens == seen == tokens[: tokens.index(tokens[3]) + 1]
    assert answer.ended


def test_what_does_not_fit_is_refused(small: LoadedModel) -> None:
    session = _eager(small, BUCKET)
    with pytest.raises(ValueError, match=r"3 prompt tokens and 46 new ones .* cache of 48"):
        generate(session, [1, 2, 3], 46)
    with pytest.raises(ValueError, match="17 prompt tokens do not fit: bucket 16, cache 48"):
        generate(session, list(range(17)), 1)
    with pytest.raises(ValueError, match="0 prompt tokens"):
        generate(session, [], 1)
