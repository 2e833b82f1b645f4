# SPDX-License-Identifier: Apache-2.0
"""Several processes and threads at one key: one compiles, the others wait for it, and no death holds them up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_entries import NEFF, add, build_of, must_not_build, parts_of

from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import key_lock, store
from libtorch_neuronx_lite.compile.entry import read_entry
from libtorch_neuronx_lite.compile.inventory import items, prune
from libtorch_neuronx_lite.compile.key import key_of
from libtorch_neuronx_lite.compile.key_lock import KeyLock
from libtorch_neuronx_lite.compile.remote import save
from libtorch_neuronx_lite.compile.staging import is_alive
from libtorch_neuronx_lite.compile.store import Store

PARTS = parts_of()
KEY = key_of(PARTS)

# A fork's child starts with everything imported; it touches no device and starts no thread.
_fork = multiprocessing.get_context("fork")
_DEADLINE = 60.0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _note(folder: Path, what: str) -> None:
    (folder / f"{what}.{os.getpid()}.{threading.get_ident()}").touch()


def _notes(folder: Path, what: str) -> int:
    return len(list(folder.glob(f"{what}.*")))


def _obtain(root: Path, notes: Path, gate: Path | None = None) -> None:
    """Get the entry; a build says that it began, and ends when the gate is there."""

    def build(folder: Path) -> dict[str, Any]:
        _note(notes, "build")
        if gate is not None:
            _until(gate.exists)
        return build_of(PARTS)(folder)

    _note(notes, "start")
    assert Store(root).obtain(KEY, build, name="model").neff == NEFF
    _note(notes, "done")


def _start(*arguments: Any) -> Any:
    process = _fork.Process(target=_obtain, args=arguments)
    process.start()
    return process


def _join(processes: list[Any]) -> list[int]:
    for process in processes:
        process.join(_DEADLINE)
    return [process.exitcode for process in processes]


def test_eight_processes_compile_one_graph_once(tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    notes.mkdir()
    processes = [_start(tmp_path / "root", notes, gate) for _ in range(8)]
    _until(lambda: _notes(notes, "start") == 8 and _notes(notes, "build") == 1)
    gate.touch()
    assert _join(processes) == [0] * 8
    assert _notes(notes, "build") == 1
    assert sorted(os.listdir(tmp_path / "root")) == [KEY, f"{KEY}.lock"]


def test_eight_threads_compile_one_graph_once(tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    notes.mkdir()
    threads = [threading.Thread(target=_obtain, args=(tmp_path / "root", notes, gate)) for _ in range(8)]
    for thread in threads:
        thread.start()
    _until(lambda: _notes(notes, "start") == 8 and _notes(notes, "build") == 1)
    gate.touch()
    for thread in threads:
        thread.join(_DEADLINE)
    assert (_notes(notes, "build"), _notes(notes, "done")) == (1, 8)


def test_another_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    notes.mkdir()
    holder = _start(tmp_path / "root", notes, gate)
    _until(lambda: _notes(notes, "build") == 1)
    waiting = [_start(tmp_path / "root", notes, gate) for _ in range(3)]
    _until(lambda: _notes(notes, "start") == 4)
    assert KeyLock(tmp_path / "root", KEY).holder().pid == holder.pid  # type: ignore[union-attr]
    os.kill(holder.pid, signal.SIGKILL)
    _until(lambda: _notes(notes, "build") == 2)
    gate.touch()
    assert _join(waiting) == [0] * 3
    assert _join([holder]) == [-signal.SIGKILL]
    assert _notes(notes, "build") == 2
    assert KeyLock(tmp_path / "root", KEY).holder() is None
    left = [item for item in items(tmp_path / "root") if item.state == "staging"]
    assert len(left) == 1  # the killed process could not clean up
    assert prune(tmp_path / "root") == left
    assert read_entry(tmp_path / "root", KEY) is not None


def test_a_child_of_the_killed_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A server forks (data loaders, daemons); the child lives on and must not hold what its parent held."""
    ready = tmp_path / "ready"

    def holder() -> None:
        assert KeyLock(tmp_path, KEY).try_acquire("model")
        if os.fork() == 0:
            ready.write_text(str(os.getpid()))
            time.sleep(_DEADLINE)
            os._exit(0)
        time.sleep(_DEADLINE)

    process = _fork.Process(target=holder)
    process.start()
    _until(lambda: ready.exists() and ready.read_text() != "")
    child = int(ready.read_text())
    try:
        assert not KeyLock(tmp_path, KEY).try_acquire("other")
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(child)
        assert KeyLock(tmp_path, KEY).holder() is None
        lock = KeyLock(tmp_path, KEY)
        assert lock.try_acquire("other")
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.join(_DEADLINE)


def test_a_wait_ends_with_the_name_of_who_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    notes.mkdir()
    holder = _start(tmp_path / "root", notes, gate)
    _until(lambda: _notes(notes, "build") == 1)
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "0.4")
    monkeypatch.setattr(store, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(store, "_PROGRESS_SECONDS", 0.1)
    with (
        caplog.at_level("INFO", "libtorch_neuronx_lite"),
        pytest.raises(_errors.CacheWaitError, match="NEURON_LIBTORCH_COMPILATION_TIMEOUT") as caught,
    ):
        Store(tmp_path / "root").obtain(KEY, must_not_build, name="model")
    assert f"process {holder.pid} on " in str(caught.value)
    assert any("still waiting for process" in record.getMessage() for record in caplog.records)
    gate.touch()
    assert _join([holder]) == [0]
    assert Store(tmp_path / "root").obtain(KEY, must_not_build, name="model").neff == NEFF


def _save(local: Path, remote: Path, barrier: Any) -> None:
    barrier.wait(_DEADLINE)
    save(local, remote, KEY)


def test_two_savers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    add(tmp_path / "local")
    for round_ in range(5):
        remote, barrier = tmp_path / f"remote{round_}", _fork.Barrier(4)
        savers = [_fork.Process(target=_save, args=(tmp_path / "local", remote, barrier)) for _ in range(4)]
        for saver in savers:
            saver.start()
        assert _join(savers) == [0] * 4
        assert os.listdir(remote) == [KEY]
        found = read_entry(remote, KEY)
        assert found is not None
        assert found.neff == NEFF


def test_readers_never_see_half_an_entry_while_it_is_pruned_and_made(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    root = tmp_path / "root"

    def prune_often() -> None:
        while not stop.exists():
            prune(root, most_bytes=0)

    root.mkdir()
    process = _fork.Process(target=prune_often)
    process.start()
    try:
        for _ in range(150):
            assert Store(root).obtain(KEY, build_of(PARTS), name="model").neff == NEFF
            for _ in range(10):
                read_entry(root, KEY)  # whole, or none: raises for anything between
    finally:
        stop.touch()
        assert _join([process]) == [0]
    assert not list(root.glob("*.broken.*"))


def test_a_lock_whose_file_was_removed_is_taken_on_the_new_file(tmp_path: Path) -> None:
    first, second = KeyLock(tmp_path, KEY), KeyLock(tmp_path, KEY)
    assert first.try_acquire("one")
    assert not second.try_acquire("two")
    assert second.holder() == first.holder()
    first.release(remove=True)
    assert not (tmp_path / f"{KEY}{key_lock.SUFFIX}").exists()
    assert second.try_acquire("two")
    second.release()
    second.release()
    assert second.holder() is None
