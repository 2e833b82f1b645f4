# SPDX-License-Identifier: Apache-2.0
"""The command `python -m libtorch_neuronx_lite.hostcc`: neuronx-cc's arguments, exit statuses, last line on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_program_oracle import HostProgram

from libtorch_neuronx_lite.hostcc.__main__ import EXIT_CRASH, EXIT_INVALID, EXIT_USAGE, main, split_ignored
from libtorch_neuronx_lite.worker import WorkerError

GRAPH = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
  %r = {op} %a : tensor<2xf32>
  return %r : tensor<2xf32>
}}"""


def _write(folder: Path, op: str) -> Path:
    path = folder / "graph.mlir"
    path.write_text(GRAPH.format(op=op))
    return path


def test_a_graph_becomes_a_neff_and_ignored_options_are_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, output, log = _write(tmp_path, "stablehlo.negate"), tmp_path / "out.neff", tmp_path / "log"
    status = main([
        "compile", str(graph), "--framework", "XLA", "--target", "host", "--output", str(output), "--logfile", str(log),
        "--model-type=transformer", "-O1", "--lnc", "2",
    ])  # fmt: skip
    assert status == 0
    assert HostProgram(output.read_bytes()).ops() == ["negate"]
    assert "--model-type=transformer -O1 --lnc 2" in log.read_text()
    assert capsys.readouterr().err == "Compiler status PASS\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.mlir", "log", "out.neff"]


def test_an_op_without_a_lowering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = _write(tmp_path, "stablehlo.cholesky")
    graph.write_text(graph.read_text().replace("2xf32", "2x2xf32"))
    assert main(["compile", str(graph), "--output", str(tmp_path / "out.neff")]) == EXIT_INVALID
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ERROR: stablehlo.cholesky in graph 'graph'")
    assert ":2:8" in last  # line and column in the module
    assert not (tmp_path / "out.neff").exists()


@pytest.mark.parametrize(
    "text", ["", "func.func @main(", "module { func.func @f() { return } func.func @g() { return } }"]
)
def test_a_file_that_is_no_module(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "graph.mlir"
    graph.write_text(text)
    assert main(["compile", str(graph)]) == EXIT_INVALID
    assert "ERROR: " in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(tmp_path / "none")]) == EXIT_INVALID
    assert "No such file" in capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "x", "--target", "trn2"]) == EXIT_USAGE
    assert "invalid choice: 'trn2'" in capsys.readouterr().err
    assert main([]) == EXIT_USAGE


def test_a_compiler_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(*_: object, **__: object) -> bytes:
        raise WorkerError(
            "died", "the worker process ended with signal SIGABRT (6)", exit_signal=6, stderr_tail="LLVM ERROR"
        )

    monkeypatch.setattr("libtorch_neuronx_lite.hostcc.__main__.compile_stablehlo", die)
    assert main(["compile", str(_write(tmp_path, "stablehlo.negate"))]) == EXIT_CRASH
    error = capsys.readouterr().err.splitlines()
    assert error[-1] == "ERROR: the worker process ended with signal SIGABRT (6)"
    assert "LLVM ERROR" in error


def test_ignored_options_take_their_values_along() -> None:
    assert split_ignored(["compile", "--optlevel", "2", "g", "--jobs=4"]) == (
        ["compile", "g"],
        ["--optlevel", "2", "--jobs=4"],
    )
