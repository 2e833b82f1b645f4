# SPDX-License-Identifier: Apache-2.0
"""What every Python test starts from: this machine's host runtime, its own cache, no leftovers from the shell."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_PREFIXES = ("NEURON_", "VLLM_NEURON_", "VLLM_CACHE_ROOT")


def pytest_configure(config: pytest.Config) -> None:
    """Clears the environment before any test module is imported: the runtime reads it once, at first use.

    Inside a compiled region a graph either runs whole on the device or fails, so `error` there would change nothing;
    what it catches is an operator that fell out of a graph. Tests of the fallback itself set `allow` again.
    """
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        del os.environ[name]
    os.environ["NEURON_LIBTORCH_RUNTIME"] = "host"
    config.stash[_CACHE_KEY] = None


_CACHE_KEY = pytest.StashKey[str | None]()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each run compiles into a folder of its own; a NEFF left by another version must not answer."""
    os.environ["NEURON_LIBTORCH_CACHE_ROOT"] = str(tmp_path_factory.mktemp("cache"))


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


class FreshPython:
    """A call runs the code with warnings as errors and fails the test, showing stderr, unless it exits with 0."""

    def __call__(self, code: str, *, path: Path | None = None, timeout: float = 120, **environment: str) -> str:
        result = self.run(code, path=path, timeout=timeout, **environment)
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def run(
        self, code: str, *, path: Path | None = None, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The same without the check. `path` is put in front of PYTHONPATH."""
        variables = {**os.environ, **environment}
        if path is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), variables.get("PYTHONPATH")]))
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
