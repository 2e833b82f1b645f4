# SPDX-License-Identifier: Apache-2.0
"""The compile cache by the names that callers use: keys, what goes into them, fetching and saving entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from .entry import Artifact, BrokenEntryError, read_entry, write_metadata
from .key import KeyComponent, add_key_component, check_key, remove_key_component
from .options import Options
from .remote import save
from .request import request_for
from .source_digest import source_digest
from .store import Build, Store

__all__ = [
    "Artifact",
    "KeyComponent",
    "add_key_component",
    "create_cache_hash",
    "fetch_remote_or_compile",
    "remove_key_component",
    "save_artifact_metadata",
    "save_cache",
    "source_digest",
]


def create_cache_hash(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> str:
    """Return the key, 32 hexadecimal digits, that compiling this inference graph with these options has.

    The graph is read, not lowered. Call it where the backend is called: inside AOTAutograd's trace, whose knowledge of
    aliases is part of the key.

    Raises:
        CompileError: the inputs do not fit the graph, or it has no key.
    """
    from . import backend

    checked, _ = backend.preprocess_and_validate_inputs(gm, example_inputs, options)
    return request_for(checked, Options.parse(options)).key


def fetch_remote_or_compile(
    hash_key: str,
    local_cache_dir: str | Path,
    compile: Build,
    *,
    remote_cache_dir: str | Path | None = None,
    name: str = "graph",
) -> Path:
    """Make sure that the entry of a key is complete in a local cache, and return its folder.

    Found locally, it is returned at once; else it is copied from the remote cache, else compiled, in either case by one
    process while others wait for it.

    Args:
        hash_key: the key.
        local_cache_dir: the folder of all entries.
        compile: called as (folder); writes `graph_<key>.neff` and `module.mlir` there and returns the metadata of
            `schema.create_metadata`, with the `key_parts` that the key is made of.
        remote_cache_dir: the folder to fetch from; none by default.
        name: of the graph, for messages.

    Raises:
        ValueError: the key is no key.
        CacheWaitError, CacheMissError, CacheError: see `store.Store.obtain`.
        CacheError: the local folder cannot be written, so there is no folder to return.
    """
    remote = Path(remote_cache_dir) if remote_cache_dir is not None else None
    artifact = Store(Path(local_cache_dir), remote).obtain(check_key(hash_key), compile, name=name)
    assert artifact.folder is not None
    return artifact.folder


def save_artifact_metadata(directory: str | Path, metadata: Mapping[str, Any]) -> None:
    """Write `.artifact_metadata_v0.json` into the folder of an entry, whole or not at all."""
    write_metadata(Path(directory), dict(metadata))


def save_cache(local_cache_dir: str | Path, remote_cache_dir: str | Path, hash_key: str) -> None:
    """Copy one complete entry to the remote cache; nothing happens when it is there already.

    Raises:
        RuntimeError: the local entry is missing, incomplete or damaged; or the remote cannot be written.
        ValueError: the key is no key.
    """
    local = Path(local_cache_dir)
    try:
        complete = read_entry(local, check_key(hash_key)) is not None
    except BrokenEntryError as error:
        raise RuntimeError(f"the cache entry {local / hash_key} is damaged and was not saved: {error}") from error
    if not complete:
        raise RuntimeError(f"the cache entry {local / hash_key} is not complete and was not saved")
    save(local, Path(remote_cache_dir), hash_key)
