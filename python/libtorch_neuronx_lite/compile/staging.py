# SPDX-License-Identifier: Apache-2.0
"""Folders in the making: entries are built under a name that is no key and become entries by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from .._errors import CacheError
from .entry import BrokenEntryError

_NAME = re.compile(r"\.([0-9a-f]{32})\.([^/]{1,64})\.(\d{1,10})\.[0-9a-f]{8}\.(tmp|old)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHUNK = 1 << 20
_MOST_FILES = 256


def name_for(key: str, kind: str = "tmp") -> str:
    """Return a new name for a folder in the making (`tmp`) or on its way out (`old`)."""
    return f".{key}.{socket.gethostname()[:64]}.{os.getpid()}.{secrets.token_hex(4)}.{kind}"


def owner_is_gone(name: str) -> bool:
    """Return whether a name is one of `name_for` whose process, on this host, has ended."""
    match = _NAME.fullmatch(name)
    return match is not None and match.group(2) == socket.gethostname()[:64] and not is_alive(int(match.group(3)))


def is_staging(name: str) -> bool:
    """Return whether a name is one of `name_for`."""
    return _NAME.fullmatch(name) is not None


def is_alive(pid: int) -> bool:
    """Return whether a process of this host exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")


@contextlib.contextmanager
def staging(root: Path, key: str) -> Iterator[Path]:
    """Make a folder beside the entries, and remove whatever of it is left when the block ends.

    Raises:
        CacheError: the disk is full; nothing of the entry stays behind.
    """
    folder = root / name_for(key)
    try:
        folder.mkdir()
        yield folder
    except OSError as error:
        raise_if_full(error, root)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raise_if_full(error: OSError, root: Path) -> None:
    """Raise CacheError when the error says that a disk, a quota or a file size limit is reached."""
    if error.errno not in _FULL:
        return
    free = "unknown"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(root).free >> 10} KiB"
    raise CacheError(
        f"the compile cache {root} cannot take another entry: {error.strerror} ({free} free). Nothing of it was kept."
        " Make room with `neuron-lite cache prune --max-size 10G` or --older-than, put the cache elsewhere with"
        " NEURON_LIBTORCH_CACHE_ROOT, or do without it: NEURON_LIBTORCH_DISABLE_COMPILE_CACHE=1."
    ) from error


def publish(folder: Path, entry: Path) -> None:
    """Rename a finished folder to its entry, in place of an unfinished one. The caller holds the key's lock."""
    old = entry.with_name(name_for(entry.name, "old"))
    try:
        os.rename(folder, entry)
        return
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    os.rename(entry, old)
    os.rename(folder, entry)
    if old.is_symlink() or not old.is_dir():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def copy_entry(source: Path, target: Path) -> None:
    """Copy the regular files of an entry into a new folder's place; links and everything else are left out.

    Raises:
        BrokenEntryError: the source is a link, or has more files than an entry.
        OSError: reading or writing failed.
    """
    try:
        folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BrokenEntryError(f"it cannot be opened as a folder: {error.strerror}") from error
    try:
        names = os.listdir(folder)
        if len(names) > _MOST_FILES:
            raise BrokenEntryError(f"it has {len(names)} files; an entry has at most {_MOST_FILES}")
        for name in sorted(names):
            if not name.endswith(".tmp"):
                _copy_file(folder, name, target)
    finally:
        os.close(folder)


def _copy_file(folder: int, name: str, target: Path) -> None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return
        raise
    with os.fdopen(fd, "rb") as source:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        with (target / name).open("xb") as copy:
            shutil.copyfileobj(source, copy, _CHUNK)
