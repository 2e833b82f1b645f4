# SPDX-License-Identifier: Apache-2.0
"""`aot_compile`, `save_compiled_function` and `torch.compiler.load_compiled_function`: a restart compiles nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_oracle import DEVICE
from saved_step import Step

from fresh_process import FreshPython
from libtorch_neuronx_lite.compile import backend, key
from libtorch_neuronx_lite.compile.native_backend import register
from libtorch_neuronx_lite.worker import pool


@pytest.fixture
def model() -> Step:
    """On the device, its weights always the same."""
    return Step().to(DEVICE)


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """An input and a cache."""
    return torch.arange(8.0).reshape(2, 4).to(DEVICE), torch.zeros(2, 4, device=DEVICE)


@pytest.fixture
def saved(model: Step, inputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compiled step in a file; the compile cache it was made in is not there any more."""
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "first"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=register(), fullgraph=True, dynamic=False)
        function = compiled.forward.aot_compile((inputs, {}))
        expected = model(*(t.clone() for t in inputs)).cpu()
        torch.testing.assert_close(function(model, *(t.clone() for t in inputs)).cpu(), expected)
        function.save_compiled_function(str(tmp_path / "step.bin"))
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "second"))
    return tmp_path / "step.bin"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that compiler processes get."""
    jobs: list[str] = []
    run = pool.WorkerPool.run

    def counted(self: pool.WorkerPool, job: str, *arguments: Any, **keywords: Any) -> Any:
        jobs.append(job)
        return run(self, job, *arguments, **keywords)

    monkeypatch.setattr(pool.WorkerPool, "run", counted)
    return jobs


def _load(path: Path) -> Any:
    torch._dynamo.reset()
    return torch.compiler.load_compiled_function(io.BytesIO(path.read_bytes()))


def _check(function: Any, model: Step, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    want_cache, got_cache = inputs[1].clone(), inputs[1].clone()
    with torch.no_grad():
        want = model(inputs[0], want_cache).cpu()
        got = function(model, inputs[0], got_cache).cpu()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got_cache.cpu(), want_cache.cpu())


def test_loading_compiles_nothing(saved: Path, model: Step, inputs: Any, compilations: list[str]) -> None:
    _check(_load(saved), model, inputs)
    assert compilations == []


def test_another_process_traces_and_compiles_nothing(saved: Path, fresh_python: FreshPython) -> None:
    printed = fresh_python(
        f"""
        import sys, torch
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import libtorch_neuronx_lite
        from torch._dynamo.utils import counters
        from libtorch_neuronx_lite.worker import pool
        from saved_step import Step
        model = Step().to("neuron:0")
        x, cache = torch.arange(8.0).reshape(2, 4).to("neuron:0"), torch.zeros(2, 4, device="neuron:0")
        with torch.no_grad(), open({str(saved)!r}, "rb") as file:
            function = torch.compiler.load_compiled_function(file)
            got = function(model, x, cache)
            want = model(x, torch.zeros(2, 4, device="neuron:0"))
        torch.testing.assert_close(got.cpu(), want.cpu())
        torch.testing.assert_close(cache.relu().cpu() + 1, got.cpu())
        print(pool._pool is None, sum(counters["frames"].values()), sum(counters["stats"].values()))
        """
    )
    assert printed.split() == ["True", "0", "0"]


def test_another_package_version_makes_the_executable_anew(
    saved: Path,
    model: Step,
    inputs: Any,
    compilations: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(key, "package_version", lambda: "0.2.0+later")
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        function = _load(saved)
        _check(function, model, inputs)
    assert compilations == ["hostcc.compiler:compile"]  # from the saved StableHLO: nothing is lowered again
    (record,) = (record for record in caplog.records if "saved graph" in record.getMessage())
    assert "versions libtorch-neuronx-lite is" in record.getMessage()
    assert "0.2.0+later here" in record.getMessage()
    assert not (tmp_path / "second" / "neuron" / "compile_cache").exists()


def test_an_entry_of_the_same_graph_in_the_cache_is_preferred(
    saved: Path, model: Step, inputs: Any, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key, "package_version", lambda: "0.2.0+later")
    torch._dynamo.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=register(), fullgraph=True, dynamic=False)
        compiled.forward.aot_compile((inputs, {}))
    compilations.clear()
    _check(_load(saved), model, inputs)
    assert compilations == []


def test_another_target_is_never_given_the_old_executable(
    saved: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="the compiler for Neuron chips was not found"):
        _load(saved)
    assert compilations == []


def test_calls_that_do_not_fit_are_refused(saved: Path, model: Step, inputs: Any) -> None:
    function = _load(saved)
    longer = [torch.zeros(3, 4, device=DEVICE), torch.zeros(3, 4, device=DEVICE)]
    with torch.no_grad(), pytest.raises(RuntimeError, match="GuardManager check failed"):
        function(model, *longer)
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        function(model, *inputs)  # gradients are on here


def test_without_a_cache_the_graph_is_still_saved(
    model: Step, inputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[str]
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_DISABLE_COMPILE_CACHE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=register(), fullgraph=True, dynamic=False)
        compiled.forward.aot_compile((inputs, {})).save_compiled_function(str(tmp_path / "step.bin"))
    compilations.clear()
    _check(_load(tmp_path / "step.bin"), model, inputs)
    assert compilations == []


def test_ordinary_compilation_is_not_made_to_be_saved(inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    compile_graph = backend.compile

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        run = compile_graph(*arguments, **keywords)
        made.append(type(run).__name__ == "PortableGraph")
        return run

    monkeypatch.setattr(backend, "compile", recorded)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x: x * 67, backend=register(), dynamic=False)(inputs[0])
    assert made == [False]
