# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache folder, and what may be taken out of it while other processes use it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .entry import MARKER, BrokenEntryError, is_captured, read_entry, read_metadata, verify_module
from .key_lock import SUFFIX, Holder, KeyLock
from .staging import is_staging, name_for, owner_is_gone
from .store import FAILED

_KEY = re.compile(r"[0-9a-f]{32}")
_BROKEN = re.compile(r"[0-9a-f]{32}\.broken\.\d{1,3}")
# A folder in the making whose process is on another host is taken for abandoned after this many seconds.
_ABANDONED_SECONDS = 86400.0


@dataclass(frozen=True)
class Item:
    """One entry, or one thing beside the entries.

    Attributes:
        name: of the folder; the key, for an entry.
        state: `complete`, `captured`, `partial`, `compiling`, `broken`, `staging` or `failed`.
        bytes: of its files.
        modified: when it was finished, or last written to; seconds since 1970.
        graph, target: from the metadata; empty where there is none.
        holder: who compiles it now.
    """

    name: str
    state: str
    bytes: int
    modified: float
    graph: str = ""
    target: str = ""
    holder: Holder | None = None


def items(root: Path) -> Iterator[Item]:
    """Yield what is in a cache folder, in the order of names. Follows no links; a missing folder is an empty one."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(SUFFIX):
            continue
        path = root / name
        with contextlib.suppress(FileNotFoundError):
            if _KEY.fullmatch(name):
                yield _entry(root, name)
            elif _BROKEN.fullmatch(name):
                yield Item(name, "broken", size_of(path), path.lstat().st_mtime)
            elif is_staging(name):
                yield Item(name, "staging", size_of(path), path.lstat().st_mtime)
            elif name == FAILED:
                for child in sorted(os.listdir(path)):
                    inner = path / child
                    yield Item(f"{FAILED}/{child}", "failed", size_of(inner), inner.lstat().st_mtime)


def _entry(root: Path, key: str) -> Item:
    path = root / key
    holder = KeyLock(root, key).holder()
    marker = path / MARKER
    if os.path.lexists(marker):
        state, modified = "complete", marker.lstat().st_mtime
    else:
        modified = path.lstat().st_mtime
        state = "captured" if is_captured(root, key) else "partial"
    graph = target = ""
    try:
        metadata = read_metadata(root, key)
        graph = str(metadata.get("name", ""))
        target = str((metadata.get("key_parts") or {}).get("target", ""))
    except BrokenEntryError:
        state = "broken" if state == "complete" else state
    if holder is not None and state != "complete":
        state = "compiling"
    return Item(key, state, size_of(path), modified, graph, target, holder)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the regular files below a folder, links not followed."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    total = 0
    for folder, _, files in os.walk(path, followlinks=False):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def verify(root: Path, key: str) -> str | None:
    """Check every digest of a complete entry; return what is wrong, None when nothing is."""
    try:
        if read_entry(root, key) is None:
            return "it is not complete"
        verify_module(root, key)
    except BrokenEntryError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def prune(
    root: Path, *, older_than: float | None = None, most_bytes: int | None = None, dry_run: bool = False
) -> list[Item]:
    """Remove entries by age and by size, oldest first, and whatever no process can use any more; return what went.

    Left-overs (broken and partial entries, failures, folders of processes that ended) go in any case. An entry that is
    being compiled is left alone. Entries vanish by a rename, so that no reader meets half of one; a process that has
    loaded one keeps it.

    Args:
        root: the cache folder.
        older_than: seconds since an entry was finished.
        most_bytes: the size that the entries may have together afterwards.
        dry_run: remove nothing.
    """
    now = time.time()
    found = list(items(root))
    gone: list[Item] = []
    kept: list[Item] = []
    for item in found:
        if item.state == "staging":
            stale = owner_is_gone(item.name) or now - item.modified > _ABANDONED_SECONDS
        elif item.state in ("complete", "captured"):
            stale = older_than is not None and now - item.modified > older_than
        else:
            stale = item.state != "compiling"
        (gone if stale else kept).append(item)
    if most_bytes is not None:
        entries = sorted((i for i in kept if i.state in ("complete", "captured")), key=lambda item: item.modified)
        total = sum(item.bytes for item in entries)
        for item in entries:
            if total <= most_bytes:
                break
            total -= item.bytes
            gone.append(item)
    if dry_run:
        return gone
    removed = [item for item in gone if _remove(root, item)]
    _remove_lock_files(root)
    return removed


def _remove(root: Path, item: Item) -> bool:
    path = root / item.name
    if not _KEY.fullmatch(item.name):
        _delete(path)
        return True
    lock = KeyLock(root, item.name)
    if not lock.try_acquire("neuron-lite cache prune"):
        return False
    try:
        aside = root / name_for(item.name, "old")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
            _delete(aside)
        return True
    finally:
        lock.release(remove=True)


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def _remove_lock_files(root: Path) -> None:
    """Remove the lock files of keys that have no entry and no holder."""
    for name in os.listdir(root):
        key = name.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and _KEY.fullmatch(key) and not os.path.lexists(root / key):
            lock = KeyLock(root, key)
            if lock.try_acquire("neuron-lite cache prune"):
                lock.release(remove=True)
