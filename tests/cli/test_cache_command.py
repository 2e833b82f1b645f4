# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite cache`: every action on a folder with sound, damaged, unfinished and foreign things in it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from libtorch_neuronx_lite.cli.main import main
from libtorch_neuronx_lite.compile.entry import MARKER, METADATA, neff_name
from libtorch_neuronx_lite.compile.key_lock import KeyLock

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))
from stored_entries import NEFF, add

DAY = 86400.0


def _age(root: Path, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(root / key / MARKER, (then, then))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three entries, 40, 20 and 0 days old."""
    folder = tmp_path / "compile_cache"
    for name, days in (("first", 40), ("second", 20), ("third", 0)):
        _age(folder, add(folder, name), days * DAY)
    return folder


def _run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    code = main(["cache", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def _items(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    code, text = _run(capsys, "ls", "--json", "--root", root)
    assert code == 0
    return {item["name"]: item for item in json.loads(text)}


def test_ls(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _items(root, capsys)
    assert {item["state"] for item in found.values()} == {"complete"}
    assert {item["graph"] for item in found.values()} == {"model"}
    assert {item["target"] for item in found.values()} == {"host"}
    code, text = _run(capsys, "ls", "--root", root)
    assert code == 0
    assert "3 complete entries" in text
    assert all(key in text for key in found)
    code, text = _run(capsys, "ls", "--root", root / "missing")
    assert (code, "0 complete entries" in text) == (0, True)


def test_ls_uses_the_folder_of_the_environment(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root.parent / "home"
    (home / "neuron").mkdir(parents=True)
    root.rename(home / "neuron" / "compile_cache")
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(home))
    assert "3 complete entries" in _run(capsys, "ls")[1]


def test_states(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partial, broken, compiling = sorted(_items(root, capsys))
    (root / partial / MARKER).unlink()
    (root / broken / METADATA).write_text("{")
    (root / compiling / MARKER).unlink()
    (root / ("0" * 32 + ".broken.0")).mkdir()
    (root / "failed").mkdir()
    (root / "failed" / "graph.repro").write_text("x")
    (root / "note.txt").write_text("somebody's own")
    lock = KeyLock(root, compiling)
    assert lock.try_acquire("model")
    found = _items(root, capsys)
    assert found[partial]["state"] == "partial"
    assert found[broken]["state"] == "broken"
    assert found[compiling]["state"] == "compiling"
    assert found[compiling]["holder"]["pid"] == os.getpid()
    assert found["failed/graph.repro"]["state"] == "failed"
    assert "note.txt" not in found
    code, text = _run(capsys, "prune", "--root", root, "--json")
    lock.release()
    assert code == 0
    assert {item["name"] for item in json.loads(text)} == set(found) - {compiling}
    assert {compiling, "note.txt"} <= set(os.listdir(root))


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = sorted(_items(root, capsys))[0]
    code, text = _run(capsys, "show", key[:12], "--root", root)
    assert code == 0
    for part in (key, "versions.torch", "target", neff_name(key), "io_map"):
        assert part in text
    shown = json.loads(_run(capsys, "show", key, "--root", root, "--json")[1])
    assert shown["files"][neff_name(key)] == len(NEFF)
    assert shown["metadata"]["cache_key"] == key
    code, text = _run(capsys, "show", "zzz", "--root", root)
    assert (code, "no entry" in text) == (2, True)
    code, text = _run(capsys, "show", "", "--root", root)
    assert (code, "3 entries" in text) == (2, True)


def test_what_an_entry_says_does_not_steer_the_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = sorted(_items(root, capsys))[0]
    data = json.loads((root / key / METADATA).read_text())
    (root / key / METADATA).write_text(json.dumps({**data, "name": "\x1b[2Jgone", "io_map": {"0": "\x1b]0;title\x07"}}))
    (root / key / "command.txt").write_text("neuronx-cc \x1b[31m")
    for action in (["ls"], ["show", key]):
        assert "\x1b" not in _run(capsys, *action, "--root", root)[1]


def test_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, "verify", "--root", root) == (0, "3 of 3 entries are sound\n")
    keys = sorted(_items(root, capsys))
    (root / keys[0] / neff_name(keys[0])).write_bytes(NEFF[:-1] + b"!")
    (root / keys[1] / "module.mlir").write_text("module { }")
    code, text = _run(capsys, "verify", "--root", root)
    assert code == 1
    assert "1 of 3 entries are sound" in text
    assert "sha256" in text
    assert _run(capsys, "verify", keys[2], "--root", root)[0] == 0


def test_save(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    assert _run(capsys, "save", "--root", root)[0] == 2
    monkeypatch.setenv("NEURON_LIBTORCH_REMOTE_CACHE", str(remote))
    keys = sorted(_items(root, capsys))
    assert "1 of 1 entries saved" in _run(capsys, "save", keys[0], "--root", root)[1]
    assert "2 of 3 entries saved" in _run(capsys, "save", "--root", root)[1]
    assert sorted(os.listdir(remote)) == keys
    (root / keys[0] / "module.mlir").write_text("module { }")
    assert _run(capsys, "save", "--root", root, "--remote", tmp_path / "other")[0] == 1
    assert sorted(os.listdir(tmp_path / "other")) == keys[1:]


def test_prune_by_age(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 removed" in _run(capsys, "prune", "--root", root)[1]
    assert "2 would go" in _run(capsys, "prune", "--root", root, "--older-than", "2w", "--dry-run")[1]
    assert len(_items(root, capsys)) == 3
    assert "1 removed" in _run(capsys, "prune", "--root", root, "--older-than", "30d")[1]
    assert "1 removed" in _run(capsys, "prune", "--root", root, "--older-than", "24h")[1]
    (left,) = _items(root, capsys)
    assert sorted(os.listdir(root)) == [left, f"{left}.lock"]


def test_prune_by_size_takes_the_oldest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _items(root, capsys)
    youngest = max(before.values(), key=lambda item: item["modified"])
    assert "2 removed" in _run(capsys, "prune", "--root", root, "--max-size", youngest["bytes"])[1]
    assert list(_items(root, capsys)) == [youngest["name"]]
    assert "1 removed" in _run(capsys, "prune", "--root", root, "--max-size", "0")[1]
    assert os.listdir(root) == []


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], ["--max-size", "much"], ["--older-than", "5"]])
def test_wrong_ages_and_sizes(arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache", "prune", "--root", str(root), *arguments])
    assert ended.value.code == 2
    assert arguments[1] in capsys.readouterr().err
