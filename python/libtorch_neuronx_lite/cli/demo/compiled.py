# SPDX-License-Identifier: Apache-2.0
"""The demo's model on a neuron core, compiled (one prefill bucket, one decode step), and its eager peer."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from libtorch_neuronx_lite import _C, envs
from libtorch_neuronx_lite import device as neuron
from libtorch_neuronx_lite.compile.native_backend import register

from .generation import Session, StaticKvCache
from .model import LoadedModel
from .record import CompileRecord

Stage = Callable[[str], contextlib.AbstractContextManager[None]]


class CompiledSession:
    """Moves a copy of the model to `device`, then compiles and runs each of `steps` once.

    Attributes:
        session: ready to generate; its next prefill is no longer a cold one.
        compile_seconds: first call of both steps, from tracing to the result.
        after_aot_seconds: the part of it after AOTAutograd handed the graphs over.
        neff_bytes: size of the executable of each step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        device: torch.device,
        dtype: torch.dtype,
        *,
        bucket: int,
        cache_length: int,
        stage: Stage = lambda name: contextlib.nullcontext(),
        steps: Collection[str] = ("prefill", "decode"),
    ) -> None:
        self.device = device
        self.compile_seconds = 0.0
        self.after_aot_seconds = 0.0
        self.neff_bytes: dict[str, int] = {}
        with stage(f"move the model to {device}"):
            module = copy.deepcopy(loaded.module).to(dtype).to(device)
            module.tie_weights()  # nn.Module.to gave each use of a shared weight a copy of its own: README, Limits
            neuron.empty_cache()  # gives that copy's memory back
            cache = StaticKvCache(loaded.config, cache_length, dtype, device)
            neuron.synchronize(device)
            self.session = Session(module, cache, bucket, compile_step)
        with torch.no_grad():
            for step in steps:
                with stage(f"compile {step}"), self._compiling(step):
                    if step == "prefill":
                        token, _ = self.session.prefill([0])
                    else:
                        token, _ = self.session.decode(torch.zeros(1, 1, dtype=torch.int64).to(device))
                    token.cpu()

    @contextlib.contextmanager
    def _compiling(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        with CompileRecord().recording() as record:
            yield
        self.compile_seconds += time.perf_counter() - started
        self.after_aot_seconds += record.after_aot_seconds
        self.neff_bytes[step] = record.neff_bytes

    @property
    def runtime(self) -> str:
        """`host` or `nrt`."""
        return str(_C.runtime_info()["runtime"])

    def device_memory_bytes(self) -> int:
        """Bytes in use on the core: weights, cache, executables and their buffers."""
        used, _ = _C.runtime_info()["memory"][self.device.index]
        return int(used)


def compile_step(step: nn.Module) -> Any:
    """What a serving stack would write: static shapes, the whole step in one graph."""
    return torch.compile(step, backend=register(), fullgraph=True, dynamic=False)


def eager_session(loaded: LoadedModel, dtype: torch.dtype, cache_length: int) -> Session:
    """The same model with a static cache of the same length on the CPU, eager, prompts at their own length."""
    module = copy.deepcopy(loaded.module).to(dtype)
    return Session(module, StaticKvCache(loaded.config, cache_length, dtype, torch.device("cpu")))


def core_threads() -> int:
    """CPU threads of a host core while it is the only one with a model: the policy of csrc/host/cpu_share.h."""
    fixed: int | None = envs.NEURON_LIBTORCH_HOST_THREADS_PER_CORE
    return fixed or len(os.sched_getaffinity(0))
