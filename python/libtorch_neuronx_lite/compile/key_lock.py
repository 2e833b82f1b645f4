# SPDX-License-Identifier: Apache-2.0
"""One writer for each key: a lock that the kernel takes from a process that dies, with the name of who holds it.

POSIX record locks: the kernel drops them with the process, a fork's child does not inherit them, and they work on NFS.
They do not exclude threads of one process and end when any descriptor of the file is closed there, so every lock of
this process is in a table, and only this module opens the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SUFFIX = ".lock"
_MOST_BYTES = 4096
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: process, host, what for, and since when (seconds since 1970)."""

    pid: int
    host: str
    name: str
    since: float

    def describe(self) -> str:
        """Return a phrase for messages."""
        return f"process {self.pid} on {self.host}"


class KeyLock:
    """The lock of one key; not re-entrant. Raises OSError where the folder cannot be written."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / f"{key}{SUFFIX}"
        self._fd: int | None = None

    def try_acquire(self, name: str) -> bool:
        """Take the lock, saying what for, or return False at once when another thread or process has it."""
        path = str(self._path)
        with _mutex:
            if path in _held:
                return False
            while True:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    os.close(fd)
                    return False
                except BaseException:
                    os.close(fd)
                    raise
                if _is_same_file(fd, path):
                    break
                os.close(fd)  # the file was removed between open and lock: the lock is worth nothing
            holder = Holder(os.getpid(), socket.gethostname(), name, time.time())
            _write(fd, holder)
            _held[path] = holder
            _owners[path] = (threading.get_ident(), fd)
            self._fd = fd
            return True

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; with `remove` the file goes too. Does nothing when it is not held."""
        if self._fd is None:
            return
        with _mutex:
            fd, self._fd = self._fd, None
            _owners.pop(str(self._path), None)
            if _held.pop(str(self._path), None) is not None:  # else: a fork's child, which holds nothing
                with contextlib.suppress(OSError):
                    if remove:
                        self._path.unlink(missing_ok=True)
                    else:
                        os.ftruncate(fd, 0)
            os.close(fd)

    def holder(self) -> Holder | None:
        """Return who holds the lock; None when nobody does, such as after its holder was killed."""
        path = str(self._path)
        with _mutex:
            if path in _held:
                return _held[path]
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                return None
            try:
                return _parse(os.pread(fd, _MOST_BYTES, 0)) if _is_locked(fd) else None
            finally:
                os.close(fd)


def _is_locked(fd: int) -> bool:
    """Ask the kernel whether another process has the lock on a file."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    return bool(kind != fcntl.F_UNLCK)


def _parse(text: bytes) -> Holder | None:
    try:
        data: Any = json.loads(text)
        return Holder(int(data["pid"]), str(data["host"])[:64], str(data["name"])[:200], float(data["since"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_same_file(fd: int, path: str) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


_mutex = threading.Lock()
_held: dict[str, Holder] = {}
_owners: dict[str, tuple[int, int]] = {}  # path -> thread, descriptor


def renew() -> None:
    """Say that the locks of this thread begin now: whoever waits for them counts from here.

    For a holder whose work starts only now, because it had to wait for something that is limited itself.
    """
    with _mutex:
        for path, (thread, fd) in _owners.items():
            if thread == threading.get_ident():
                _held[path] = replace(_held[path], since=time.time())
                _write(fd, _held[path])


def _write(fd: int, holder: Holder) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(holder)).encode()[:_MOST_BYTES], 0)


def _after_fork_in_child() -> None:
    """The child has none of its parent's locks; its copies of the descriptors are harmless and end with it."""
    global _mutex
    _mutex = threading.Lock()
    _held.clear()
    _owners.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
