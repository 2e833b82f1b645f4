# SPDX-License-Identifier: Apache-2.0
"""The command line itself: help, version, exit codes, and errors as one sentence."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from libtorch_neuronx_lite.cli.errors import CommandError
from libtorch_neuronx_lite.cli.main import build_parser, main


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libtorch_neuronx_lite.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_version() -> None:
    result = _run("--version")
    assert (result.returncode, result.stdout) == (0, f"neuron-lite {metadata.version('libtorch-neuronx-lite')}\n")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m libtorch_neuronx_lite.cli info | head -c 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("v", "")


@pytest.mark.parametrize("command", [[], ["cache"], ["demo"], ["info"], ["neff"]])
def test_help_shows_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert "neuron-lite " in text


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["neff"], ["demo", "--max-new-tokens", "0"], ["demo", "--max-new-tokens", "x"],
     ["demo", "--dtype", "float64"], ["info", "--unknown"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: neuron-lite" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("first line\nsecond line"), CommandError("first line second line", 1)])
def test_an_error_is_one_sentence_unless_debug(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> dict[str, object]:
        raise error

    monkeypatch.setattr("libtorch_neuronx_lite.cli.info.describe", fail)
    assert main(["info"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("neuron-lite info: ")
    assert "first line second line" in lines[0]
    for arguments in (["--debug", "info"], ["info", "--debug"]):
        with pytest.raises(type(error)):
            main(arguments)


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> dict[str, object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("libtorch_neuronx_lite.cli.info.describe", interrupt)
    assert main(["info"]) == 130


def test_debug_is_off_by_default() -> None:
    assert build_parser().parse_args(["info"]).debug is False
    assert build_parser().parse_args(["--debug", "info"]).debug is True
