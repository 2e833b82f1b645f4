# SPDX-License-Identifier: Apache-2.0
"""The key of a compiled graph: everything the executable depends on, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from .. import envs
from .._errors import CompileError
from . import neuronx_cc
from .optimization_level import canonical
from .options import Options
from .platform import HOST

KeyComponent = Callable[[fx.GraphModule, Options], str]

_KEY = re.compile(r"[0-9a-f]{32}")
_PACKAGE = Path(__file__).parents[1]
# The folders whose code decides what an executable holds.
_COMPILING = ("compile", "fx_passes", "hostcc", "stablehlo")

_components: dict[str, KeyComponent] = {}
_components_lock = threading.Lock()


def check_key(key: str) -> str:
    """Return the key; raise ValueError unless it is 32 lower-case hexadecimal digits, and so a safe folder name."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a cache key: want 32 digits of 0-9 and a-f")
    return key


def add_key_component(name: str, component: KeyComponent) -> None:
    """Make a string of the caller's own part of every key of this process, under a name.

    Args:
        name: says what the string stands for; the same name again replaces the component.
        component: called as (graph, options) for each graph, with AOTAutograd's graph before any pass. It must return
            the same string in every process that is to share the entry.
    """
    with _components_lock:
        _components[name] = component


def remove_key_component(name: str) -> None:
    """Take a component out of the keys again; unknown names are ignored."""
    with _components_lock:
        _components.pop(name, None)


@functools.cache
def package_version() -> str:
    """Return this package's version with a digest of the code that compiles: an edited source tree is another version.

    Where it is installed does not count.
    """
    digest = hashlib.sha256()
    for folder in _COMPILING:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{distribution_version()}+{digest.hexdigest()[:12]}"


def distribution_version() -> str:
    """Return the version of this package as it is installed."""
    return _version("libtorch-neuronx-lite")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def versions(target: str) -> dict[str, str]:
    """Return the versions that an executable for the target depends on."""
    found = {
        "libtorch-neuronx-lite": package_version(),
        "torch": _version("torch").partition("+")[0],  # +cpu and +cu126 trace alike
        "torch-mlir": _version("torch-mlir"),
    }
    if target != HOST:
        found["neuronx-cc"] = neuronx_cc.version()
    return found


def extra_components(gm: fx.GraphModule, options: Options) -> dict[str, str]:
    """Return what `add_key_component` adds for a graph.

    Raises:
        CompileError: a component failed or returned something else than a string.
    """
    with _components_lock:
        components = dict(_components)
    extra: dict[str, str] = {}
    for name, component in sorted(components.items()):
        try:
            value: Any = component(gm, options)
        except Exception as error:
            raise CompileError(f"the cache key component '{name}' failed: {error}") from error
        if not isinstance(value, str):
            raise CompileError(f"the cache key component '{name}' returned {value!r}; it must return a string")
        extra[name] = value
    return extra


def key_parts(
    digest: str, *, target: str, compiler_args: Sequence[str], label: str, extra: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the parts of a key, as an entry's metadata states them.

    Args:
        digest: of the graph, see `graph_hash`.
        target: what the graph is compiled for.
        compiler_args: the caller's, without `--target`; their order counts, the spelling of the level does not.
        label: `model_name`.
        extra: components of the caller's own.
    """
    return {
        "graph": digest,
        "target": target,
        "args": canonical(compiler_args, target),
        "label": label,
        "versions": versions(target),
        "extra": extra or {},
    }


def key_of(parts: dict[str, Any]) -> str:
    """Return the key for its parts, 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def require_hits() -> bool:
    """Return whether the environment makes a cache miss an error."""
    return bool(envs.NEURON_LIBTORCH_ASSERT_CACHE_HIT or envs.VLLM_NEURON_DISABLE_WARMUP_COMPILE)
