# SPDX-License-Identifier: Apache-2.0
"""One entry of the compile cache: its files, how it is finished, and how it is read without being believed.

An entry is a folder that may come from another machine or user. Reading follows no link, opens nothing but regular
files of its own, takes no size on trust, executes and unpickles nothing, and compares digests before a byte is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .key import check_key, key_of

MARKER = ".compilation_complete"
METADATA = ".artifact_metadata_v0.json"
MODULE = "module.mlir"
COMMAND = "command.txt"
LOG = "log-neuron-cc.txt"
FX_GRAPH = "fxgraph.txt"
EXAMPLE_INPUTS = "example_inputs.txt"

_MOST_METADATA = 64 << 20
_MOST_MARKER = 4096
_MOST_NEFF = 16 << 30


def neff_name(key: str) -> str:
    """Return the name of the executable's file in the entry of a key."""
    return f"graph_{key}.neff"


class BrokenEntryError(ValueError):
    """An entry that cannot be used; the text says why."""


@dataclass(frozen=True)
class Artifact:
    """A compiled graph.

    Attributes:
        key: its key.
        metadata: what `.artifact_metadata_v0.json` holds; checked to be of this key.
        neff: the executable's bytes.
        folder: the entry, or None when it is in no cache.
    """

    key: str
    metadata: dict[str, Any] = field(repr=False)
    neff: bytes = field(repr=False)
    folder: Path | None = None
    _module: bytes | None = field(default=None, repr=False)

    def module(self) -> bytes:
        """Return the graph that the executable was made of, in StableHLO.

        Raises:
            BrokenEntryError: the entry has gone, or its graph is not the one that was compiled.
        """
        if self._module is not None:
            return self._module
        if self.folder is None:
            raise BrokenEntryError("the graph of this executable was not kept")
        return verify_module(self.folder.parent, self.key)


def is_complete(root: Path, key: str) -> bool:
    """Return whether the entry has its marker, which is written last. Opens nothing."""
    try:
        return stat.S_ISREG(os.lstat(root / key / MARKER).st_mode)
    except OSError:
        return False


def is_captured(root: Path, key: str) -> bool:
    """Return whether the entry is a graph that was captured and is still to be compiled."""
    folder = root / key
    try:
        names = set(os.listdir(folder)) if stat.S_ISDIR(os.lstat(folder).st_mode) else set()
    except OSError:
        return False
    return {METADATA, MODULE} <= names and MARKER not in names and neff_name(key) not in names


def read_entry(root: Path, key: str) -> Artifact | None:
    """Return the entry of a key, None where there is none or it has no marker.

    Raises:
        BrokenEntryError: it has a marker and something in it is missing, of another size, altered, or not of this key.
        OSError: it cannot be read, such as for want of permission.
    """
    check_key(key)
    try:
        folder = os.open(root / key, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise BrokenEntryError("it is not a folder") from None
    except OSError as error:
        if (root / key).is_symlink():
            raise BrokenEntryError("it is a symbolic link") from error
        raise
    try:
        try:
            marker = _read(folder, MARKER, _MOST_MARKER)
        except FileNotFoundError:
            return None
        metadata = _metadata(_read_part(folder, METADATA, _MOST_METADATA), key)
        size = _neff_size(marker)
        neff = _read_part(folder, neff_name(key), _MOST_NEFF)
        if len(neff) != size:
            raise BrokenEntryError(f"{neff_name(key)} has {len(neff)} bytes and the marker says {size}")
        if "neff_sha256" in metadata and hashlib.sha256(neff).hexdigest() != metadata["neff_sha256"]:
            raise BrokenEntryError(f"{neff_name(key)} is not the file that was compiled: its sha256 differs")
    except BrokenEntryError:
        if _is_there(root / key, folder):
            raise
        return None  # it was removed or replaced while it was read
    finally:
        os.close(folder)
    return Artifact(key, metadata, neff, root / key)


def _is_there(path: Path, folder: int) -> bool:
    try:
        named = path.lstat()
    except OSError:
        return False
    opened = os.fstat(folder)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def verify_module(root: Path, key: str) -> bytes:
    """Return the graph beside the executable, compared with its digest, which a hit does not need and so does not do.

    Raises:
        BrokenEntryError: it is missing or altered.
    """
    folder = os.open(root / key, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        metadata = _metadata(_read_part(folder, METADATA, _MOST_METADATA), key)
        module = _read_part(folder, MODULE, _MOST_NEFF)
        if "module_sha256" in metadata and hashlib.sha256(module).hexdigest() != metadata["module_sha256"]:
            raise BrokenEntryError(f"{MODULE} is not the graph that was compiled: its sha256 differs")
        return module
    finally:
        os.close(folder)


def read_metadata(root: Path, key: str) -> dict[str, Any]:
    """Return the checked metadata of an entry, complete or captured.

    Raises:
        BrokenEntryError: there is none, or it is not of this key.
    """
    check_key(key)
    try:
        folder = os.open(root / key, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BrokenEntryError(f"it is no folder: {error.strerror}") from error
    try:
        return _metadata(_read_part(folder, METADATA, _MOST_METADATA), key)
    finally:
        os.close(folder)


def finish(folder: Path, key: str, metadata: dict[str, Any]) -> Artifact:
    """Write metadata and marker into a folder that holds the module and the executable; return the artifact.

    The marker comes last: before it, the folder is no entry.
    """
    neff = (folder / neff_name(key)).read_bytes()
    module = (folder / MODULE).read_bytes()
    complete = {
        **metadata,
        "neff_bytes": len(neff),
        "neff_sha256": hashlib.sha256(neff).hexdigest(),
        "module_sha256": hashlib.sha256(module).hexdigest(),
    }
    write_metadata(folder, complete)
    (folder / MARKER).write_text(f"completed:{int(time.time())}\nneff_size:{len(neff)}\n", encoding="ascii")
    return Artifact(key, complete, neff, folder, module)


def write_metadata(folder: Path, metadata: dict[str, Any]) -> None:
    """Write `.artifact_metadata_v0.json` in a folder, whole or not at all."""
    partial = folder / f"{METADATA}.{os.getpid()}.tmp"
    partial.write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    partial.replace(folder / METADATA)


def _metadata(text: bytes, key: str) -> dict[str, Any]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenEntryError(f"{METADATA} is not JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict) or data.get("version") != 0:
        raise BrokenEntryError(f"{METADATA} is not of version 0")
    if data.get("cache_key") != key:
        raise BrokenEntryError(f"{METADATA} is of the key {str(data.get('cache_key'))[:64]!r}")
    parts = data.get("key_parts")  # absent from what other tools wrote
    if parts is not None and (not isinstance(parts, dict) or key_of(parts) != key):
        raise BrokenEntryError(f"{METADATA} states parts that do not make this key")
    for name in ("neff_sha256", "module_sha256"):
        if not isinstance(data.get(name, ""), str):
            raise BrokenEntryError(f"{METADATA}: {name} is not a digest")
    return data


def _neff_size(marker: bytes) -> int:
    for line in marker.decode("ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "neff_size" and value.isdecimal() and len(value) < 16:
            return int(value)
    raise BrokenEntryError(f"{MARKER} states no neff_size")


def _read_part(folder: int, name: str, limit: int) -> bytes:
    try:
        return _read(folder, name, limit)
    except FileNotFoundError:
        raise BrokenEntryError(f"{name} is missing") from None


def _read(folder: int, name: str, limit: int) -> bytes:
    try:
        # O_NONBLOCK: opening a pipe that somebody put here must not wait for its other end.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BrokenEntryError(f"{name} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BrokenEntryError(f"{name} is not a regular file")
        if status.st_size > limit:
            raise BrokenEntryError(f"{name} has {status.st_size} bytes; the limit is {limit}")
        return stream.read(status.st_size)
