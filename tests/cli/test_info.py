# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite info`: what it says of this installation, and of one that cannot start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from libtorch_neuronx_lite import envs
from libtorch_neuronx_lite.cli.main import main


def _info(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def _in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libtorch_neuronx_lite.cli", "info", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def test_versions_runtime_and_cores(capsys: pytest.CaptureFixture[str]) -> None:
    info = _info(capsys)
    assert info["versions"]["torch"] == torch.__version__
    assert info["versions"]["built_for_torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert info["runtime"]["name"] == "host"
    assert "NEURON_LIBTORCH_RUNTIME" in info["runtime"]["reason"]
    assert Path(info["runtime"]["library"]).name == "libnrt_host.so"
    assert [core["device"] for core in info["runtime"]["cores"]] == ["neuron:0", "neuron:1"]
    assert all(0 <= core["used"] < core["limit"] for core in info["runtime"]["cores"])


def test_every_variable_is_listed_with_value_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "77")
    listed = {variable["name"]: variable for variable in _info(capsys)["environment"]}
    assert set(listed) == set(envs.VARIABLES)
    timeout = listed["NEURON_LIBTORCH_COMPILATION_TIMEOUT"]
    assert (timeout["value"], timeout["default"]) == ("77", 600.0)
    assert all(variable["meaning"].endswith(".") for variable in listed.values())


def test_a_misspelt_variable_is_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOTS", "/nowhere")
    monkeypatch.setenv("NEURON_LIBTORCH_QQQ", "1")
    unknown = {variable["name"]: variable["nearest"] for variable in _info(capsys)["unknown_variables"]}
    assert unknown["NEURON_LIBTORCH_CACHE_ROOTS"] == "NEURON_LIBTORCH_CACHE_ROOT"
    assert "NEURON_LIBTORCH_QQQ" in unknown
    assert main(["info"]) == 0
    assert "did you mean NEURON_LIBTORCH_CACHE_ROOT?" in capsys.readouterr().out


def test_the_chip_compiler_on_path_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _info(capsys)["compilers"]["neuronx-cc"] is None
    program = tmp_path / "neuronx-cc"
    program.write_text("#!/bin/sh\necho 'NeuronX Compiler version 9.8.7'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = _info(capsys)["compilers"]["neuronx-cc"]
    assert found == {"path": str(program), "version": "NeuronX Compiler version 9.8.7"}


def test_the_human_form_has_all_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for part in ("versions", "runtime: host", "neuron:1", "compilers", "NEURON_LIBTORCH_RUNTIME", "= host"):
        assert part in text


def test_a_runtime_that_does_not_load_is_shown_and_exits_with_1(tmp_path: Path) -> None:
    missing = str(tmp_path / "libnrt.so.1")
    result = _in_a_process("--json", NEURON_LIBTORCH_RUNTIME="nrt", NEURON_LIBTORCH_NRT_LIBRARY=missing)
    assert result.returncode == 1, result.stderr
    info = json.loads(result.stdout)
    assert info["runtime"]["name"] == "nrt"
    assert missing in info["runtime"]["error"]
    assert info["runtime"]["cores"] == []
    assert info["versions"]["torch"] == torch.__version__


def test_an_unknown_runtime_lists_the_choices() -> None:
    result = _in_a_process(NEURON_LIBTORCH_RUNTIME="gpu")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for word in ("NEURON_LIBTORCH_RUNTIME", "auto", "nrt", "host"):
        assert word in result.stdout + result.stderr
