# SPDX-License-Identifier: Apache-2.0
"""One cache folder, one process: entries found, moved, damaged, hostile, unwritable; what is kept and what is said."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_entries import NEFF, add, build_of, metadata_of, must_not_build, parts_of

from fresh_process import FreshPython
from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import cache, entry, store
from libtorch_neuronx_lite.compile.entry import MARKER, METADATA, MODULE, neff_name
from libtorch_neuronx_lite.compile.key import key_of
from libtorch_neuronx_lite.compile.store import Store

PARTS = parts_of()
KEY = key_of(PARTS)


def test_an_entry_is_found_again(tmp_path: Path) -> None:
    assert add(tmp_path) == KEY
    found = Store(tmp_path).obtain(KEY, must_not_build, name="model")
    assert found.neff == NEFF
    assert found.folder == tmp_path / KEY
    assert found.metadata["key_parts"] == PARTS
    marker = (tmp_path / KEY / MARKER).read_text().splitlines()
    assert marker[0].startswith("completed:")
    assert marker[1:] == [f"neff_size:{len(NEFF)}"]


def test_entries_move_with_their_folder(tmp_path: Path) -> None:
    """A whole cache is copied elsewhere, its first place gone: still hits, and no file names the old place."""
    add(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    shutil.rmtree(tmp_path / "old")
    assert Store(tmp_path / "new").obtain(KEY, must_not_build, name="model").neff == NEFF


def _flip(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return damage


def _replace(file: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_bytes(content) and None


def _remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def _link(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        elsewhere = folder.parent / f"elsewhere-{file}"
        (folder / file).rename(elsewhere)
        (folder / file).symlink_to(elsewhere)

    return damage


def _pipe(folder: Path) -> None:
    (folder / neff_name(KEY)).unlink()
    os.mkfifo(folder / neff_name(KEY))


def _metadata(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / METADATA).read_text())
        (folder / METADATA).write_text(json.dumps({**data, **changes}))

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped bit in the executable": _flip(neff_name(KEY)),
    "a cut executable": _replace(neff_name(KEY), NEFF[:-1]),
    "no executable": _remove(neff_name(KEY)),
    "no metadata": _remove(METADATA),
    "metadata that is no JSON": _replace(METADATA, b"{"),
    "metadata that is a list": _replace(METADATA, b"[]"),
    "metadata nested too deep": _replace(METADATA, b"[" * 200_000),
    "metadata of another key": _metadata(cache_key="0" * 32),
    "metadata of other parts": _metadata(key_parts={**PARTS, "target": "trn2"}),
    "metadata of a later version": _metadata(version=1),
    "an empty marker": _replace(MARKER, b""),
    "a marker with a huge size": _replace(MARKER, b"neff_size:999999999999999999999"),
    "a long marker": _replace(MARKER, b"x" * 5000),
    "an executable that is a link": _link(neff_name(KEY)),
    "metadata that is a link": _link(METADATA),
    "a pipe in place of the executable": _pipe,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_set_aside_and_made_anew_with_one_warning(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path)
    DAMAGES[name](tmp_path / KEY)
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        found = Store(tmp_path).obtain(KEY, build_of(PARTS, b"made anew"), name="model")
        assert found.neff == b"made anew"
        assert Store(tmp_path).obtain(KEY, must_not_build, name="model").neff == b"made anew"
    (record,) = caplog.records
    assert f"{KEY}.broken.0" in record.getMessage()
    assert (tmp_path / f"{KEY}.broken.0").is_dir()


def test_an_entry_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    add(tmp_path / "other")
    root = tmp_path / "root"
    root.mkdir()
    (root / KEY).symlink_to(tmp_path / "other" / KEY)
    assert Store(root).obtain(KEY, build_of(PARTS, b"made anew"), name="model").neff == b"made anew"
    assert (tmp_path / "other" / KEY / neff_name(KEY)).read_bytes() == NEFF


def test_a_partial_entry_is_replaced(tmp_path: Path) -> None:
    add(tmp_path)
    (tmp_path / KEY / MARKER).unlink()
    assert Store(tmp_path).find(KEY) is None
    assert Store(tmp_path).obtain(KEY, build_of(PARTS, b"made anew"), name="model").neff == b"made anew"
    assert sorted(os.listdir(tmp_path)) == [KEY, f"{KEY}.lock"]


def test_an_entry_that_its_reader_cannot_use_is_made_anew(tmp_path: Path) -> None:
    def check(artifact: entry.Artifact) -> None:
        if artifact.neff == NEFF:
            raise ValueError("the plan is for another graph")

    add(tmp_path)
    found = Store(tmp_path, check=check).obtain(KEY, build_of(PARTS, b"made anew"), name="model")
    assert found.neff == b"made anew"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, Any]:
        (folder / MODULE).write_text("module {}")
        raise _errors.CompileError("no")

    for _ in range(2):
        with pytest.raises(_errors.CompileError, match="no"):
            Store(tmp_path).obtain(KEY, build, name="model")
    assert os.listdir(tmp_path) == [f"{KEY}.lock"]
    add(tmp_path)


def test_keys_that_are_paths_are_refused(tmp_path: Path) -> None:
    for key in ("../escape", "", "A" * 32, "0" * 31, "0" * 33, "/etc"):
        with pytest.raises(ValueError, match="not a cache key"):
            cache.fetch_remote_or_compile(key, tmp_path, must_not_build)
        with pytest.raises(ValueError, match="not a cache key"):
            cache.save_cache(tmp_path, tmp_path / "remote", key)


def test_a_local_miss_is_fetched_from_the_remote(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    add(remote)
    folder = cache.fetch_remote_or_compile(KEY, local, must_not_build, remote_cache_dir=remote)
    assert folder == local / KEY
    assert (folder / neff_name(KEY)).read_bytes() == NEFF
    shutil.rmtree(remote)
    assert cache.fetch_remote_or_compile(KEY, local, must_not_build) == folder


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_remote_entry_is_not_used_and_not_touched(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    add(remote)
    DAMAGES[name](remote / KEY)
    before = sorted(os.listdir(remote / KEY))
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        assert Store(local, remote).obtain(KEY, build_of(PARTS, b"made here"), name="model").neff == b"made here"
    assert len(caplog.records) == 1
    assert sorted(os.listdir(remote / KEY)) == before
    assert sorted(os.listdir(local)) == [KEY, f"{KEY}.lock"]


def test_a_remote_link_out_of_the_folder_is_not_copied(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    add(remote)
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    (remote / KEY / "note.txt").symlink_to(secret)
    os.mkfifo(remote / KEY / "pipe")
    Store(local, remote).obtain(KEY, must_not_build, name="model")
    assert not {"note.txt", "pipe"} & set(os.listdir(local / KEY))


def test_save_copies_one_complete_entry(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    with pytest.raises(RuntimeError, match="not complete"):
        cache.save_cache(local, remote, KEY)
    add(local)
    from libtorch_neuronx_lite import compile

    compile.save_cache(local, remote, KEY)
    first = (remote / KEY / MARKER).stat()
    cache.save_cache(local, remote, KEY)
    assert (remote / KEY / MARKER).stat().st_mtime_ns == first.st_mtime_ns
    assert os.listdir(remote) == [KEY]
    _flip(neff_name(KEY))(local / KEY)
    with pytest.raises(RuntimeError, match="damaged"):
        cache.save_cache(local, tmp_path / "elsewhere", KEY)
    _flip(neff_name(KEY))(remote / KEY)
    _flip(neff_name(KEY))(local / KEY)
    cache.save_cache(local, remote, KEY)
    assert entry.read_entry(remote, KEY) is not None


def test_a_miss_can_be_an_error_that_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from libtorch_neuronx_lite.compile.miss import explain_miss

    add(tmp_path)
    wanted = {**PARTS, "target": "trn2", "versions": {**PARTS["versions"], "torch": "2.14.0"}}
    for name in ("NEURON_LIBTORCH_ASSERT_CACHE_HIT", "VLLM_NEURON_DISABLE_WARMUP_COMPILE"):
        monkeypatch.setenv(name, "1")
        assert Store(tmp_path).obtain(KEY, must_not_build, name="model").neff == NEFF
        about = functools.partial(explain_miss, tmp_path, wanted)
        with pytest.raises(_errors.CacheMissError) as caught:
            Store(tmp_path).obtain(key_of(wanted), must_not_build, name="m", about=about)
        monkeypatch.delenv(name)
    text = str(caught.value)
    assert KEY in text
    assert "target is host there and trn2 here" in text
    assert "versions torch is" in text
    assert "1 entries, none of this graph" in explain_miss(tmp_path, {**wanted, "graph": "other"})


@pytest.fixture
def nobody() -> Any:
    """Lets a test run without root's right to write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_folder_that_cannot_be_written_still_gives_hits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    add(tmp_path / "root")
    other = parts_of("other graph")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    (tmp_path / "root").chmod(0o555)
    request.getfixturevalue("nobody")
    reader = Store(tmp_path / "root")
    assert reader.obtain(KEY, must_not_build, name="model").neff == NEFF
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        made = reader.obtain(key_of(other), build_of(other), name="model")
        again = reader.obtain(key_of(other), must_not_build, name="model")
    assert made.neff == again.neff == NEFF
    assert made.folder is not None
    assert not made.folder.is_relative_to(tmp_path)
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()
    assert store.writable_root(tmp_path / "root") == made.folder.parent


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # the kernel refuses what goes beyond, as a quota does
    try:
        with pytest.raises(_errors.CacheError, match="neuron-lite cache prune"):
            Store(tmp_path).obtain(KEY, build_of(PARTS, b"x" * 100_000), name="model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == [f"{KEY}.lock"]
    add(tmp_path)


def test_a_disk_that_fills_up_at_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, *arguments: Any, **keywords: Any) -> int:
        if path.name == MARKER:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(_errors.CacheError, match="No space left on device"):
        add(tmp_path)
    assert os.listdir(tmp_path) == [f"{KEY}.lock"]


def test_metadata_is_written_whole(tmp_path: Path) -> None:
    cache.save_artifact_metadata(tmp_path, metadata_of(PARTS))
    assert os.listdir(tmp_path) == [METADATA]
    assert json.loads((tmp_path / METADATA).read_text())["cache_key"] == KEY


def test_a_stand_in_folder_goes_with_its_process(tmp_path: Path, fresh_python: FreshPython) -> None:
    folder = fresh_python(
        """
        import pathlib, sys
        sys.modules["torch_mlir"] = None
        from libtorch_neuronx_lite.compile.store import writable_root
        print(writable_root(pathlib.Path(sys.executable, "cache")))
        """
    ).strip()
    assert "neuron-compile-cache-" in folder
    assert not Path(folder).exists()
