# SPDX-License-Identifier: Apache-2.0
"""The compile cache on disk: look, and else be the one process that fetches or builds while the others wait.

`<root>/<key>/` is an entry; beside it are `<key>.lock`, hidden folders in the making, `<key>.broken.<n>` for what was
found damaged, and `failed/` for what did not compile. A hit takes no lock and writes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import envs
from .._errors import CacheError, CacheMissError, CacheWaitError
from .._log import get_logger
from .entry import Artifact, BrokenEntryError, finish, is_captured, is_complete, read_entry, write_metadata
from .key import require_hits
from .key_lock import KeyLock
from .staging import copy_entry, publish, staging

_logger = get_logger(__name__)

# Raises ValueError for an entry that is whole and yet cannot be used.
Check = Callable[[Artifact], object]
# A build writes the graph, the executable and whatever tells about them into the folder, and returns the metadata.
Build = Callable[[Path], dict[str, Any]]

_POLL_SECONDS = (0.02, 0.5)  # first and longest pause between two looks at a lock
_PROGRESS_SECONDS = 15.0
# What a waiter allows beyond the compiler's own limit, for the holder to fetch, write and give up.
_GRACE_SECONDS = 30.0
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
FAILED = "failed"


class Store:
    """One cache folder, with the remote folder it is filled from. Holds no descriptors; as cheap as its paths."""

    def __init__(self, root: Path, remote: Path | None = None, check: Check | None = None) -> None:
        self.root = root
        self.remote = remote
        self._check = check

    @classmethod
    def from_environment(cls, root: Path | None = None, check: Check | None = None) -> Store:
        """Return the store that the environment names; `root` stands in for the local folder."""
        remote: str | None = envs.NEURON_LIBTORCH_REMOTE_CACHE
        local = root if root is not None else Path(envs.get_neuron_compile_cache_dir())
        if root is None:
            _refuse_foreign(local)
        return cls(local, Path(remote).expanduser() if remote else None, check)

    def find(self, key: str) -> Artifact | None:
        """Return the local entry of a key, None for a miss. An entry that cannot be used is a miss here."""
        try:
            return self._read(self.root, key)
        except (BrokenEntryError, OSError):
            return None  # whoever takes the lock says why

    def _read(self, root: Path, key: str) -> Artifact | None:
        found = read_entry(root, key)
        if found is not None and self._check is not None:
            try:
                self._check(found)
            except ValueError as error:
                raise BrokenEntryError(str(error)) from error
        return found

    def obtain(self, key: str, build: Build, *, name: str, about: Callable[[], str] = str) -> Artifact:
        """Return the entry of a key: found, fetched from the remote, or built by exactly one process.

        Args:
            key: of the graph.
            build: makes the entry's files in an empty folder.
            name: the graph's name, for messages.
            about: says more about the graph where a miss is an error.

        Raises:
            CacheWaitError: another process has held the key for longer than NEURON_LIBTORCH_COMPILATION_TIMEOUT.
            CacheMissError: neither folder has it, and the environment makes that an error.
            CacheError: the disk is full.
            whatever `build` raises; nothing is kept then.
        """
        found = self.find(key)
        if found is not None:
            return found
        try:
            _prepare(self.root)
            lock = KeyLock(self.root, key)
            found = self._wait(lock, key, name)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return self._without_writing(error, key, build, name, about)
        if found is not None:
            return found
        try:
            return self._fill(key, build, name, about)
        finally:
            lock.release()

    def capture(self, key: str, write: Build, *, name: str) -> bool:
        """Put a graph that is still to be compiled into the folder; return False when the key is there, or being made.

        Args:
            key: of the graph.
            write: makes the entry's files but NEFF and marker in an empty folder, and returns the metadata.
            name: the graph's name, for those who look.

        Raises:
            CacheError: the folder cannot be written, or the disk is full.
        """
        try:
            _prepare(self.root)
            lock = KeyLock(self.root, key)
            if is_complete(self.root, key) or is_captured(self.root, key) or not lock.try_acquire(name):
                return False
        except OSError as error:
            raise CacheError(f"nothing was captured: {self.root} cannot be written: {error}") from error
        try:
            with staging(self.root, key) as folder:
                write_metadata(folder, write(folder))
                publish(folder, self.root / key)
            return True
        finally:
            lock.release()

    def _wait(self, lock: KeyLock, key: str, name: str) -> Artifact | None:
        """Take the lock, or return the entry that its holder has finished meanwhile."""
        limit: float = envs.NEURON_LIBTORCH_COMPILATION_TIMEOUT
        limit += _GRACE_SECONDS
        pause, waited_for = _POLL_SECONDS[0], None
        started = said = time.monotonic()
        while not lock.try_acquire(name):
            if is_complete(self.root, key):
                found = self.find(key)
                if found is not None:
                    return found
            holder = lock.holder()
            now = time.monotonic()
            if holder != waited_for and holder is not None:
                waited_for, started, said = holder, now, now  # each holder has the whole time
                _logger.info("graph %s (%s): %s compiles it, waiting", name, key, holder.describe())
            who = holder.describe() if holder is not None else "another process"
            if now - started > limit:
                raise CacheWaitError(
                    f"graph '{name}' ({key}): {who} has been compiling it for more than {limit:.0f} s. If it makes"
                    " progress, raise NEURON_LIBTORCH_COMPILATION_TIMEOUT (seconds); if it hangs, end it, and a waiting"
                    " process takes its place."
                )
            if now - said >= _PROGRESS_SECONDS:
                said = now
                _logger.warning(
                    "graph %s (%s): still waiting for %s after %.0f s (limit %.0f s)",
                    name, key, who, now - started, limit,
                )  # fmt: skip
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_SECONDS[1])
        return None

    def _fill(self, key: str, build: Build, name: str, about: Callable[[], str]) -> Artifact:
        """Fetch or build; the lock is held."""
        try:
            found = self._read(self.root, key)
        except (BrokenEntryError, OSError) as error:
            self._set_aside(key, str(error))
            found = None
        if found is None:
            found = self._fetch(key, name)
        if found is not None:
            return found
        if require_hits():
            raise self._miss(key, name, about)
        with staging(self.root, key) as folder:
            made = finish(folder, key, build(folder))
            publish(folder, self.root / key)
        return Artifact(key, made.metadata, made.neff, self.root / key)

    def _miss(self, key: str, name: str, about: Callable[[], str]) -> CacheMissError:
        places = f"{self.root}" + (f" and {self.remote}" if self.remote is not None else "")
        return CacheMissError(
            f"graph '{name}' is not in the compile cache, and NEURON_LIBTORCH_ASSERT_CACHE_HIT or"
            f" VLLM_NEURON_DISABLE_WARMUP_COMPILE makes that an error. Key {key}, looked for in {places}. {about()}"
        )

    def _set_aside(self, key: str, reason: str) -> None:
        for number in range(1000):
            target = self.root / f"{key}.broken.{number}"
            if not os.path.lexists(target):
                break
        with contextlib.suppress(OSError):
            os.rename(self.root / key, target)
        _logger.warning(
            "the cache entry %s cannot be used: %s. It was moved to %s and is made anew; `neuron-lite cache prune`"
            " removes what was set aside.",
            self.root / key, reason, target.name,
        )  # fmt: skip

    def _fetch(self, key: str, name: str) -> Artifact | None:
        """Copy the entry from the remote, checked before it is used; None where the remote has none."""
        if self.remote is None or not is_complete(self.remote, key):
            return None
        started = time.perf_counter()
        try:
            with staging(self.root, key) as folder:
                entry = folder / key
                entry.mkdir()
                copy_entry(self.remote / key, entry)
                found = self._read(folder, key)
                if found is None:
                    return None
                publish(entry, self.root / key)
        except (BrokenEntryError, OSError) as error:
            _logger.warning("the remote cache entry %s cannot be used: %s", self.remote / key, error)
            return None
        _logger.info(
            "graph %s (%s): fetched %d bytes from %s in %.2f s",
            name, key, len(found.neff), self.remote, time.perf_counter() - started,
        )  # fmt: skip
        return Artifact(key, found.metadata, found.neff, self.root / key)

    def _without_writing(
        self, error: OSError, key: str, build: Build, name: str, about: Callable[[], str]
    ) -> Artifact:
        own = _own_folder()
        if self.root == own:
            raise CacheError(f"the folder for compiled graphs, {self.root}, cannot be written: {error}") from error
        with _read_only_lock:
            first = self.root not in _read_only
            _read_only.add(self.root)
        if first:
            _logger.warning(
                "the compile cache %s cannot be written (%s): graphs that it lacks are compiled into %s and are gone"
                " when this process ends",
                self.root, error.strerror, own,
            )  # fmt: skip
        return Store(own, self.remote, self._check).obtain(key, build, name=name, about=about)


def writable_root(root: Path) -> Path:
    """Return the root if files can be made in it, else the folder of this process that stands in for it.

    Makes nothing: a root that is not there yet counts by the nearest folder above it.
    """
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    return root if place.is_dir() and os.access(place, os.W_OK | os.X_OK, effective_ids=True) else _own_folder()


def build_uncached(key: str, build: Build) -> Artifact:
    """Build into a folder that is gone on return: the cache is neither read nor written."""
    with tempfile.TemporaryDirectory(prefix="neuron-compile-") as folder:
        made = finish(Path(folder), key, build(Path(folder)))
    return Artifact(key, made.metadata, made.neff, None, made.module())


def _prepare(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)


def _refuse_foreign(root: Path) -> None:
    """Refuse a default cache in /tmp that somebody else made there: it may hold anything."""
    if not root.is_relative_to("/tmp") or envs.VARIABLES[_ROOT].read() or envs.VARIABLES["VLLM_CACHE_ROOT"].read():
        return
    for folder in (root, *root.parents[:2]):
        with contextlib.suppress(FileNotFoundError):
            owner = folder.lstat().st_uid
            if owner not in (os.geteuid(), 0):
                raise CacheError(
                    f"the folder {folder} of the default compile cache belongs to user {owner}. Set {_ROOT} to a folder"
                    " of your own."
                )


_ROOT = "NEURON_LIBTORCH_CACHE_ROOT"
_read_only: set[Path] = set()
_read_only_lock = threading.Lock()
_own: tuple[int, Path] | None = None


def _own_folder() -> Path:
    """Return the folder of this process in place of a cache that cannot be written; it is removed at exit."""
    global _own
    with _read_only_lock:
        if _own is not None and _own[0] == os.getpid():
            return _own[1]
        folder = Path(tempfile.mkdtemp(prefix="neuron-compile-cache-"))
        _own = (os.getpid(), folder)
        atexit.register(_remove, os.getpid(), folder)
        return folder


def _remove(pid: int, folder: Path) -> None:
    if pid == os.getpid():  # a fork's child runs its parent's exit functions too
        shutil.rmtree(folder, ignore_errors=True)
