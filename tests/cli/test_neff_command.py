# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite neff FILE` on an executable of this package, and on what is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from libtorch_neuronx_lite.cli.main import main
from libtorch_neuronx_lite.compile import backend
from libtorch_neuronx_lite.compile.entry import Artifact
from libtorch_neuronx_lite.compile.native_backend import register


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with two inputs, one of which it updates, and one further output."""
    built: list[Artifact] = []
    original = backend.build_executable

    def keep(**keywords: Any) -> Artifact:
        built.append(original(**keywords))
        return built[-1]

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    backend.build_executable = keep
    try:
        with torch.no_grad():
            cache, x = (torch.ones(4, 8).to("neuron:0") for _ in range(2))
            torch.compile(step, backend=register(), fullgraph=True, dynamic=False)(cache, x)
    finally:
        backend.build_executable = original
    path = tmp_path_factory.mktemp("neff") / "step.neff"
    path.write_bytes(built[0].neff)
    return path


def test_json(neff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["neff", str(neff), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["target"], info["bytes"]) == ("host", neff.stat().st_size)
    assert len(info["header"]["hash"]) == 64
    assert [variable["shape"] for variable in info["inputs"]] == [[4, 8], [4, 8]]
    assert [variable["bytes"] for variable in info["inputs"]] == [128, 128]
    aliases = [variable["alias_input"] for variable in info["outputs"]]
    assert sorted(aliases) == [-1, aliases[0] if aliases[0] >= 0 else aliases[1]]
    assert {"neff.json", "sg00/def.json", "sg00/program.json"} <= set(info["files"])
    assert sum(info["files"].values()) <= info["bytes"]


def test_for_people(neff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["neff", str(neff)]) == 0
    text = capsys.readouterr().out
    for part in ("target host", "inputs (2)", "outputs (2)", "[4, 8]", "is the memory of input", "sg00/program.json"):
        assert part in text


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_what_is_not_a_neff_is_one_sentence_and_exit_1(
    neff: Path, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = neff.read_bytes()
    flipped = bytearray(content)
    flipped[2000] ^= 4
    damaged = {"truncated": content[:1500], "flipped": bytes(flipped), "empty": b"", "text": b"hello " * 400}[damage]
    path = tmp_path / "damaged.neff"
    path.write_bytes(damaged)
    assert main(["neff", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"neuron-lite neff: {path} is not a NEFF this version reads: ")
    assert len(captured.err.splitlines()) == 1


def test_a_missing_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.neff", tmp_path):
        assert main(["neff", str(path)]) == 2
        assert f"{path} could not be read: " in capsys.readouterr().err
