# SPDX-License-Identifier: Apache-2.0
"""The driver of the chip compiler, against a stand-in that succeeds, fails, crashes, hangs, lies and floods."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in_compiler
import torch
from torch import fx

from libtorch_neuronx_lite import _errors, hostcc
from libtorch_neuronx_lite.compile import backend, key, neuronx_cc, supervised
from libtorch_neuronx_lite.compile.options import Options
from libtorch_neuronx_lite.compile.request import request_for
from libtorch_neuronx_lite.compile.staging import is_alive

NEFF = "graph_abc.neff"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in on PATH, no pause before a retry; returns the folder in which each of its runs leaves a note."""
    for name in ("bin", "state", "work"):
        (tmp_path / name).mkdir()
    stand_in_compiler.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("STAND_IN_HOSTCC", str(Path(hostcc.__file__).parent))
    monkeypatch.setattr(neuronx_cc, "_RETRY_PAUSE", 0.0)
    return tmp_path / "state"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder of the entry in the making."""
    return tmp_path / "work"


def _compile(work: Path, *args: str, target: str = "trn2") -> None:
    neuronx_cc.compile_neff("module {}", work, neff=NEFF, name="decode", target=target, args=args)


def _runs(state: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(state.glob("run.*"))]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _fails(work: Path, match: str) -> _errors.CompileError:
    with pytest.raises(_errors.CompileError, match=match) as caught:
        _compile(work)
    assert "'decode'" in str(caught.value)
    assert caught.value.repro == work / "module.mlir"
    return caught.value


def test_the_command_its_log_and_its_status_are_kept(state: Path, work: Path) -> None:
    _compile(work, "--lnc=2", "--model-type=transformer")
    command = shlex.split((work / "command.txt").read_text())
    assert command == [
        "neuronx-cc", "compile", "module.mlir", "--framework", "XLA", "--target", "trn2", "--output", NEFF, "--logfile",
        "log-neuron-cc.txt", "-O2", "--lnc=2", "--model-type=transformer",
    ]  # fmt: skip
    (run,) = _runs(state)
    assert run["argv"][1:] == command[1:]
    assert run["cwd"] == str(work)
    assert "exit status 0" in (work / "log-neuron-cc.txt").read_text()
    assert "compiling" in (work / "compiler-output.txt").read_text()


@pytest.mark.parametrize("args", [["-O1"], ["--optimization-level", "1"], ["--optimization-level=1"]])
def test_the_callers_level_stands_in_one_spelling(args: list[str], state: Path, work: Path) -> None:
    _compile(work, *args)
    assert [item for item in _runs(state)[0]["argv"] if "-O" in item or "level" in item] == ["-O1"]


def test_an_error_quotes_the_compiler_and_names_the_operation(
    state: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fail")
    error = _fails(work, "ended with status 70 at the operation stablehlo.fft")
    assert "NCC_EVRF007" in str(error)
    assert len(_runs(state)) == 1
    assert "exit status 70" in (work / "log-neuron-cc.txt").read_text()


@pytest.mark.parametrize("behaviour", ["oom", "killed"])
def test_a_transient_fault_does_not_fail_the_load(
    behaviour: str, state: Path, work: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STAND_IN", f"{behaviour},ok")
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        _compile(work)
    assert len(_runs(state)) == 2
    assert "attempt 2 of 2" in caplog.text


def test_retries_are_bounded(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "killed")
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILE_RETRIES", "2")
    error = _fails(work, "ended by signal SIGKILL")
    assert "(3 attempts)" in str(error)
    assert len(_runs(state)) == 3
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILE_RETRIES", "0")
    _fails(work, "ended by signal SIGKILL")
    assert len(_runs(state)) == 4


@pytest.mark.parametrize(
    ("behaviour", "match"),
    [("abort", "ended by signal SIGABRT"), ("garbage", "is no NEFF"), ("partial", r"\(1500 bytes\) is no NEFF"),
     ("silent", "wrote no NEFF")],
)  # fmt: skip
def test_what_is_no_fault_of_the_machine_is_not_tried_again(
    behaviour: str, match: str, state: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", behaviour)
    _fails(work, match)
    assert len(_runs(state)) == 1


def test_a_flood_of_output_is_bounded(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "loud")
    monkeypatch.setattr(supervised, "_MOST_LOG", 1 << 20)
    monkeypatch.setattr(neuronx_cc, "_MOST_LOG", 1 << 20)
    _compile(work)
    for name in ("compiler-output.txt", "log-neuron-cc.txt"):
        assert (work / name).stat().st_size < (1 << 20) + 200
        assert "left out" in (work / name).read_text(errors="replace")


def test_a_hanging_compiler_is_ended_with_its_tree(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hang")
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "1.5")
    _fails(work, "did not finish in 2 s and was ended; NEURON_LIBTORCH_COMPILATION_TIMEOUT")
    assert not is_alive(int((state / "child").read_text()))
    assert not is_alive(_runs(state)[0]["pid"])


def test_what_the_compiler_leaves_running_is_ended(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "daemon")
    _compile(work)
    assert not is_alive(int((state / "child").read_text()))


def test_an_interrupt_ends_the_whole_tree(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hang")

    def interrupt() -> None:
        _until((state / "child").exists)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell starts what it runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            _compile(work)
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert not is_alive(int((state / "child").read_text()))
    assert not is_alive(_runs(state)[0]["pid"])


def test_the_tree_does_not_outlive_a_killed_caller(state: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hang")
    caller = multiprocessing.get_context("fork").Process(target=_compile, args=(work,))
    caller.start()
    _until(lambda: (state / "child").exists() and (state / "child").read_text() != "")
    pids = [int((state / "child").read_text()), _runs(state)[0]["pid"]]
    assert all(is_alive(pid) for pid in pids)
    os.kill(caller.pid, signal.SIGKILL)  # type: ignore[arg-type]
    caller.join(60)
    _until(lambda: not any(is_alive(pid) for pid in pids))


def test_the_compiler_is_found_by_variable_or_on_path(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert neuronx_cc.find() == str(tmp_path / "bin" / "neuronx-cc")
    assert neuronx_cc.version() == stand_in_compiler.VERSION
    moved = tmp_path / "my-compiler"
    (tmp_path / "bin" / "neuronx-cc").rename(moved)
    with pytest.raises(_errors.CompilerNotFoundError, match="pip install neuronx-cc"):
        neuronx_cc.find()
    assert neuronx_cc.version() == "absent"
    monkeypatch.setenv("NEURON_LIBTORCH_NEURONX_CC", str(moved))
    assert neuronx_cc.find() == str(moved)
    monkeypatch.setenv("NEURON_LIBTORCH_NEURONX_CC", str(tmp_path / "nothing"))
    with pytest.raises(_errors.CompilerNotFoundError, match="NEURON_LIBTORCH_NEURONX_CC="):
        neuronx_cc.find()
    monkeypatch.setenv("NEURON_LIBTORCH_NEURONX_CC_VERSION", "2.1")
    assert key.versions("trn2")["neuronx-cc"] == "2.1"


def _graph() -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, x)),))
    gm = fx.GraphModule({}, graph)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        value = torch.empty(4)
    for node in gm.graph.nodes:
        if node.op != "output":
            node.meta["val"] = value
    return gm


def _build(*compiler_args: str) -> Any:
    gm = _graph()
    request = request_for(gm, Options.parse({"compiler_args": list(compiler_args)}))
    return backend.build_executable(gm=gm, example_inputs=[torch.empty(4)], request=request)


def test_a_chip_graph_becomes_an_entry_and_then_a_hit(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "root"))
    first = _build("--target=trn2", "-O1")
    assert {path.name for path in first.folder.iterdir()} == {
        ".artifact_metadata_v0.json", ".compilation_complete", "command.txt", "compiler-output.txt",
        "example_inputs.txt", "fxgraph.txt", f"graph_{first.key}.neff", "log-neuron-cc.txt", "module.mlir",
    }  # fmt: skip
    assert not any(str(tmp_path) in path.read_text(errors="replace") for path in first.folder.glob("*.t*"))
    assert "stablehlo.add" in (first.folder / "module.mlir").read_text()
    assert first.metadata["key_parts"]["versions"]["neuronx-cc"] == stand_in_compiler.VERSION
    again = _build("--optimization-level=1", "--target", "trn2")
    assert again.key == first.key
    assert len(_runs(state)) == 1
    assert _build("--target=trn2").key != first.key
    assert _build("--target=trn1", "-O1").key != first.key


def test_what_a_failure_leaves_can_be_looked_into(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("STAND_IN", "fail,ok")
    with pytest.raises(_errors.CompileError, match=r"stablehlo\.fft") as caught:
        _build("--target=trn2")
    assert caught.value.repro.parent.parent.name == "failed"
    assert "stablehlo.add" in caught.value.repro.read_text()
    assert (caught.value.repro.parent / "command.txt").is_file()
    assert _build("--target=trn2").neff
