# SPDX-License-Identifier: Apache-2.0
"""Cache entries for tests of the cache alone: small files in place of a graph and an executable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libtorch_neuronx_lite.compile.entry import MODULE, neff_name
from libtorch_neuronx_lite.compile.key import key_of, key_parts
from libtorch_neuronx_lite.compile.schema import create_metadata
from libtorch_neuronx_lite.compile.store import Build, Store

NEFF = b"executable" * 100


def parts_of(graph: str = "graph", **changes: Any) -> dict[str, Any]:
    """The parts of a key for the host."""
    return key_parts(graph, target="host", compiler_args=(), label="model", extra=changes)


def metadata_of(parts: dict[str, Any]) -> dict[str, Any]:
    """The metadata that a build returns."""
    return {**create_metadata(cache_key=key_of(parts), output_count=1), "name": "model", "key_parts": parts}


def build_of(parts: dict[str, Any], neff: bytes = NEFF) -> Build:
    """A build that writes the two files an entry must have."""

    def build(folder: Path) -> dict[str, Any]:
        (folder / MODULE).write_text("module {}")
        (folder / neff_name(key_of(parts))).write_bytes(neff)
        return metadata_of(parts)

    return build


def must_not_build(folder: Path) -> dict[str, Any]:
    """A build for graphs that are in the cache."""
    raise AssertionError("this was to be a hit")


def add(root: Path, graph: str = "graph") -> str:
    """Put an entry into a cache folder and return its key."""
    parts = parts_of(graph)
    return Store(root).obtain(key_of(parts), build_of(parts), name="model").key
