# SPDX-License-Identifier: Apache-2.0
"""Capturing graphs and compiling them later: many at a time, once for all ranks, again after a kill, with no device."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in_compiler
import torch
from eager_oracle import DEVICE, compiled

from libtorch_neuronx_lite import _errors, hostcc
from libtorch_neuronx_lite.compile import dynamo_entry_points, host_slots, neuronx_cc
from libtorch_neuronx_lite.compile.capture_backend import CaptureComplete, graph_capture
from libtorch_neuronx_lite.compile.host_slots import compiler_slot
from libtorch_neuronx_lite.compile.inventory import items
from libtorch_neuronx_lite.compile.native_backend import neuron_native_lite
from libtorch_neuronx_lite.compile.parallel_compile import Compiled, parallel_compile

_fork = multiprocessing.get_context("fork")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and slots of this test alone."""
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "root"))
    (tmp_path / "slots").mkdir()
    monkeypatch.setattr(host_slots, "_folder", lambda: tmp_path / "slots")
    return tmp_path / "root" / "neuron" / "compile_cache"


def _capture(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    torch._dynamo.reset()
    captured = torch.compile(function, backend=graph_capture, dynamic=False, options=options)
    with torch.no_grad(), pytest.raises(CaptureComplete, match="was captured"):
        captured(*args)


def _states(root: Path) -> dict[str, str]:
    return {item.name: item.state for item in items(root)}


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_captured_graphs_are_compiled_and_then_hits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4.0, device=DEVICE)
    functions: list[Callable[..., Any]] = [lambda x: x * 71, lambda x: x.add_(1) * 2, lambda x: x[1:] - 73]
    for number, function in enumerate(functions):
        _capture(function, x.clone(), model_name=f"step{number}")
    _capture(functions[0], x.clone(), model_name="step0")
    assert list(_states(root).values()) == ["captured"] * 3
    assert not list(root.glob("*/*.neff"))
    progress: list[Compiled] = []
    keys = parallel_compile(on_progress=progress.append)
    assert sorted(keys) == sorted(_states(root))
    assert set(_states(root).values()) == {"complete"}
    assert {turn.name for turn in progress} == {"step0", "step1", "step2"}
    assert [(turn.done, turn.total, turn.error) for turn in progress] == [(n, 3, None) for n in (1, 2, 3)]
    assert all((root / key / "fxgraph.txt").is_file() for key in keys)
    monkeypatch.setenv("NEURON_LIBTORCH_ASSERT_CACHE_HIT", "1")
    with torch.no_grad():
        for number, function in enumerate(functions):
            got = compiled(function, options={"model_name": f"step{number}"})(x.clone())
            torch.testing.assert_close(got.cpu(), function(x.cpu()))
    assert parallel_compile() == []
    _capture(functions[0], x.clone(), model_name="step0")  # compiled already: stays so
    assert set(_states(root).values()) == {"complete"}


def test_one_rank_compiles_and_fills_the_remote(root: Path, tmp_path: Path) -> None:
    _capture(lambda x: x * 79, torch.ones(2, device=DEVICE))
    assert parallel_compile(rank=1, world_size=2) == []
    assert list(_states(root).values()) == ["captured"]
    with pytest.raises(ValueError, match="rank 2 is not one of 0 to 1"):
        parallel_compile(rank=2, world_size=2)
    (key,) = parallel_compile(rank=0, world_size=2, remote_cache_dir=tmp_path / "remote")
    assert os.listdir(tmp_path / "remote") == [key]


def test_ranks_with_folders_of_their_own_do_not_collide(root: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        _capture(lambda x: x * 83, torch.ones(2, device=DEVICE), compiler_workdir=tmp_path / f"rank{rank}")
    (key,) = parallel_compile({"compiler_workdir": tmp_path / "rank1"})
    assert _states(tmp_path / "rank0") == {key: "captured"}
    assert _states(tmp_path / "rank1") == {key: "complete"}


@pytest.fixture
def chip(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compiles for trn2 with the stand-in; returns the folder of its notes."""
    for name in ("bin", "state"):
        (tmp_path / name).mkdir()
    stand_in_compiler.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("STAND_IN_HOSTCC", str(Path(hostcc.__file__).parent))
    monkeypatch.setattr(neuronx_cc, "_RETRY_PAUSE", 0.0)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return tmp_path / "state"


def _graph(factor: int) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: (x * factor,))


def _capture_for_chip(count: int) -> None:
    for factor in range(2, 2 + count):
        options = {"alias_meta_to_neuron": True, "model_name": f"g{factor}"}
        with torch.no_grad():
            graph_capture(_graph(factor), [torch.empty(4, device="meta")], options=options)


def test_a_failure_names_its_graph_and_the_rest_is_compiled(
    chip: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _capture_for_chip(3)
    monkeypatch.setenv("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", "1")
    monkeypatch.setenv("STAND_IN", "ok,fail,ok")
    with pytest.raises(_errors.CompileError, match="1 of 3 captured graphs were not compiled") as caught:
        parallel_compile()
    assert str(caught.value).count("graph 'g") == 2  # in the list, and in the compiler's own error
    states = [state for name, state in _states(root).items() if not name.startswith("failed")]
    assert sorted(states) == ["captured", "complete", "complete"]
    assert len(parallel_compile()) == 1


def test_it_resumes_after_a_kill(chip: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _capture_for_chip(3)
    monkeypatch.setenv("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", "1")
    monkeypatch.setenv("STAND_IN", "ok,hang,ok")
    process = _fork.Process(target=parallel_compile)
    process.start()
    _until(lambda: (chip / "child").exists())
    os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join(60)
    states = sorted(state for state in _states(root).values() if state != "staging")
    assert states == ["captured", "captured", "complete"]
    assert len(parallel_compile()) == 2
    assert "captured" not in _states(root).values()


def test_compilers_of_one_host_are_limited_across_processes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", "2")
    monkeypatch.setattr(host_slots, "_POLL_SECONDS", 0.01)
    at_work = tmp_path / "at_work"
    at_work.mkdir()

    def work(number: int) -> None:
        for turn in range(3):
            with compiler_slot("graph"):
                note = at_work / f"{number}.{turn}"
                note.touch()
                busy = len(os.listdir(at_work))
                time.sleep(0.02)
                note.unlink()
                if busy > 2:
                    os._exit(3)
        os._exit(0)

    processes = [_fork.Process(target=work, args=(number,)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6


def test_compiling_for_a_chip_needs_no_device(chip: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_CPU_COMPILE", "1")
    with torch.no_grad():
        run: Any = neuron_native_lite(
            _graph(89), [torch.empty(4, device="meta")], options={"alias_meta_to_neuron": True}
        )
        with pytest.raises(CaptureComplete, match="compiled for trn2, and this process has no device"):
            run(torch.empty(4, device="meta"))
    assert list(_states(root).values()) == ["complete"]
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    with torch.no_grad(), pytest.raises(_errors.OptionError, match="NEURON_PLATFORM_TARGET_OVERRIDE"):
        neuron_native_lite(_graph(89), [torch.empty(4, device="meta")], options={"alias_meta_to_neuron": True})


def test_the_capture_backend_can_be_switched_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND", "1")
    with torch.no_grad(), pytest.raises(_errors.OptionError, match="switched off"):
        graph_capture(_graph(2), [torch.empty(4, device=DEVICE)])


def test_the_older_names_are_entry_points(repository: Path, root: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    assert set(points) == {
        "neuron_libtorch", "vllm_neuron", "neuron_libtorch_graph_capture", "vllm_neuron_graph_capture",
    }  # fmt: skip
    for target in points.values():
        module, _, name = target.partition(":")
        assert module == dynamo_entry_points.__name__
        assert callable(getattr(dynamo_entry_points, name))
    x = torch.ones(2, device=DEVICE)
    with torch.no_grad():
        torch._dynamo.reset()
        run = torch.compile(lambda x: x * 97, backend=dynamo_entry_points.neuron_libtorch, dynamic=False)
        assert run(x).cpu().tolist() == [97.0, 97.0]
        torch._dynamo.reset()
        captured = torch.compile(
            lambda x: x * 101, backend=dynamo_entry_points.neuron_libtorch_graph_capture, dynamic=False
        )
        with pytest.raises(CaptureComplete):
            captured(x)


def test_a_captured_graph_is_compiled_on_the_spot_by_whoever_needs_it(root: Path) -> None:
    x = torch.ones(2, device=DEVICE)
    _capture(lambda x: x * 103, x)
    with torch.no_grad():
        assert compiled(lambda x: x * 103)(x).cpu().tolist() == [103.0, 103.0]
    assert list(_states(root).values()) == ["complete"]


def test_a_damaged_captured_graph_is_an_error(root: Path) -> None:
    _capture(lambda x: x * 107, torch.ones(2, device=DEVICE))
    (module,) = root.glob("*/module.mlir")
    module.write_bytes(module.read_bytes()[:-1])
    with pytest.raises(_errors.CompileError, match="its sha256 differs"):
        parallel_compile()


def test_the_command_line_compiles_what_was_captured(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from libtorch_neuronx_lite.cli.main import main

    for factor in (109, 113):
        _capture(lambda x, factor=factor: x * factor, torch.ones(2, device=DEVICE), model_name=f"g{factor}")
    (damaged, _) = root.glob("*/module.mlir")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    assert main(["cache", "compile", "--root", str(root)]) == 1
    printed = capsys.readouterr()
    assert "/2] compiled g" in printed.out
    assert "/2] FAILED g" in printed.out
    assert "its sha256 differs" in printed.err
    damaged.write_bytes(content)
    assert main(["cache", "compile", "--root", str(root), "--json"]) == 0
    ((key, result),) = json.loads(capsys.readouterr().out).items()
    assert key == damaged.parent.name
    assert result["error"] is None
    assert set(_states(root).values()) == {"complete"}
    assert main(["cache", "compile", "--root", str(root)]) == 0
    assert "0 captured graphs" in capsys.readouterr().out
