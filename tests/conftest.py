# SPDX-License-Identifier: Apache-2.0
"""What every Python test starts from: this machine's host runtime, its own cache, no leftovers from the shell."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fresh_process import FreshPython

_PREFIXES = ("NEURON_", "VLLM_NEURON_", "VLLM_CACHE_ROOT")


def pytest_configure(config: pytest.Config) -> None:
    """Clears the environment before any test module is imported: parts of it are read once, at first use."""
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        del os.environ[name]
    os.environ["NEURON_LIBTORCH_RUNTIME"] = "host"
    # Tests prepare and read tensors eagerly; that eager operators run on the CPU is no news to them. What may not
    # happen unseen is one inside a compiled region: see _no_fallback_in_compiled_regions.
    os.environ["NEURON_LIBTORCH_EAGER_FALLBACK"] = "allow"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each run compiles into a folder of its own; a NEFF left by another version must not answer."""
    os.environ["NEURON_LIBTORCH_CACHE_ROOT"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _no_fallback_in_compiled_regions() -> Iterator[None]:
    """A graph runs whole on the device: an operator that falls back to the CPU during its call is a failure.

    What is watched is all that runs between Dynamo's call and its return: AOTAutograd's wrappers and the executable.
    """
    if importlib.util.find_spec("libtorch_neuronx_lite") is None:
        yield  # tests/layers needs the sources only
        return
    from libtorch_neuronx_lite import device as neuron
    from libtorch_neuronx_lite.compile import backend, tracing

    trace, compile_graph = tracing.trace, backend.compile
    allowed = [0]  # by compilations inside a call: the first call of a bucket prepares constants

    def compile_counted(*arguments: Any, **keywords: Any) -> Any:
        before = neuron.fallback_total()
        try:
            return compile_graph(*arguments, **keywords)
        finally:
            allowed[0] += neuron.fallback_total() - before

    def trace_watched(*arguments: Any, **keywords: Any) -> Any:
        region = trace(*arguments, **keywords)

        def call(*inputs: Any) -> Any:
            before, counts, exempt = neuron.fallback_total(), neuron.fallback_counts(), allowed[0]
            result = region(*inputs)
            if neuron.fallback_total() - before != allowed[0] - exempt:
                added = {name: n - counts.get(name, 0) for name, n in neuron.fallback_counts().items()}
                raise AssertionError(f"ran on the CPU inside a compiled region: {[n for n, c in added.items() if c]}")
            return result

        if hasattr(region, "serialize"):  # what PyTorch saves a compiled function with
            call.serialize = region.serialize  # type: ignore[attr-defined]
        return call

    tracing.trace, backend.compile = trace_watched, compile_counted
    yield
    tracing.trace, backend.compile = trace, compile_graph


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables a test changes through monkeypatch, or directly, end with it."""
    for name, value in os.environ.items():
        if name.startswith(_PREFIXES):
            monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same random numbers; the fixture's value is the seed."""
    import torch

    value = 20_260
    random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree, for tests of files that are not installed."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def fresh_python() -> FreshPython:
    """Runs code in an interpreter of its own: `fresh_python(code, NEURON_RT_NUM_CORES="1")` returns its stdout."""
    return FreshPython()
