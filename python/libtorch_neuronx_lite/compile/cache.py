# SPDX-License-Identifier: Apache-2.0
"""The key of a compiled graph, and the NEFFs that this process has made."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

# NEFFs kept in memory, newest last; a graph that comes back after a recompilation is not compiled again.
_CAPACITY = 256

_lock = threading.Lock()
_neffs: OrderedDict[str, bytes] = OrderedDict()


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that a compiled graph depends on."""
    found: dict[str, str] = {}
    for name in ("libtorch-neuronx-lite", "torch", "torch-mlir", "neuronx-cc"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def graph_key(digest: str, *, target: str, compiler_args: Sequence[str], label: str) -> str:
    """Return the key, 32 hexadecimal digits.

    Args:
        digest: of the StableHLO text with renumbered values and without locations: shapes, dtypes and aliases are in
            it; device indices, source lines and names of Python variables are not.
        target: what the graph is compiled for.
        compiler_args: the caller's arguments; their order counts.
        label: `model_name`.
    """
    parts = {"graph": digest, "target": target, "args": list(compiler_args), "label": label, "versions": versions()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def create_cache_hash(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> str:
    """Return the key that compiling this inference graph with these options would have. Compiles nothing.

    The graph is lowered on a copy, so this costs what lowering costs.
    """
    from . import backend

    graph = fx.Graph()
    copied: Any = graph.graph_copy(gm.graph, {}, return_output_node=True)
    if copied is not None:
        value, output = copied
        graph.output(value).meta.update(output.meta)
    checked, _ = backend.preprocess_and_validate_inputs(fx.GraphModule(gm, graph), example_inputs, options)
    return backend.lower_graph(checked, options).key


def get(key: str) -> bytes | None:
    """Return the NEFF that this process made for the key."""
    with _lock:
        neff = _neffs.get(key)
        if neff is not None:
            _neffs.move_to_end(key)
        return neff


def put(key: str, neff: bytes) -> None:
    """Keep a NEFF for this process; the oldest goes when there are too many."""
    with _lock:
        _neffs[key] = neff
        while len(_neffs) > _CAPACITY:
            _neffs.popitem(last=False)


def clear() -> None:
    """Forget every NEFF of this process."""
    with _lock:
        _neffs.clear()
