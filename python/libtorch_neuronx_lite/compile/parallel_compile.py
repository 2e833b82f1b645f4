# SPDX-License-Identifier: Apache-2.0
"""Compiles what the capture backend put into the cache, many graphs at a time, once for all ranks of a job."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import envs
from .._errors import CompileError, NeuronError
from .._log import get_logger
from ..stablehlo.lower import LoweredGraph
from . import backend
from .entry import EXAMPLE_INPUTS, FX_GRAPH, read_metadata, verify_module
from .inventory import items
from .options import Options
from .remote import save
from .store import Store

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Compiled:
    """One captured graph after its turn.

    Attributes:
        key, name: of the graph.
        seconds: from its start to its end.
        error: why it failed; None when it is in the cache.
        done, total: graphs that had their turn so far, and all of them.
    """

    key: str
    name: str
    seconds: float
    error: Exception | None
    done: int
    total: int


def parallel_compile(
    options: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    remote_cache_dir: str | Path | None = None,
    on_progress: Callable[[Compiled], None] | None = None,
) -> list[str]:
    """Compile every captured graph of the cache; return their keys.

    Every rank calls it, with a barrier before (all have captured) and after (all may load): rank 0 does the work, the
    others return at once with an empty list. It may be called again after it failed or was killed: what is compiled
    stays compiled. At most NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS compilers run on a host, whoever started them.

    Args:
        options: the backend's; only `compiler_workdir` counts here, since a captured graph has its arguments with it.
        rank: of this process.
        world_size: how many processes call this.
        remote_cache_dir: where entries are fetched from if they are there, and saved to once they are compiled; by
            default NEURON_LIBTORCH_REMOTE_CACHE is fetched from, and nothing is saved.
        on_progress: called after each graph, from one thread at a time.

    Raises:
        ValueError: the rank is none of the world's.
        CompileError: graphs failed, each named with its reason; all others were compiled first.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of 0 to {world_size - 1}")
    if rank != 0:
        return []
    store = Store.from_environment(Options.parse(options).compiler_workdir)
    remote = Path(remote_cache_dir) if remote_cache_dir is not None else None
    if remote is not None:
        store = Store(store.root, remote)
    captured = [item for item in items(store.root) if item.state == "captured"]
    if not captured:
        return []
    finished: list[Compiled] = []
    told = threading.Lock()
    workers = min(int(envs.NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS), len(captured))
    with ThreadPoolExecutor(workers, "parallel-compile") as pool:
        turns = {pool.submit(_compile, store, item.name, item.graph, remote): item for item in captured}
        try:
            for turn in as_completed(turns):
                item, (seconds, error) = turns[turn], turn.result()
                with told:
                    finished.append(Compiled(item.name, item.graph, seconds, error, len(finished) + 1, len(captured)))
                _tell(finished[-1])
                if on_progress is not None:
                    on_progress(finished[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    failures = [turn for turn in finished if turn.error is not None]
    if failures:
        reasons = "\n".join(f"- graph '{turn.name}' ({turn.key}): {turn.error}" for turn in failures)
        raise CompileError(f"{len(failures)} of {len(finished)} captured graphs were not compiled:\n{reasons}")
    return [turn.key for turn in finished]


def _tell(turn: Compiled) -> None:
    state = "compiled" if turn.error is None else "failed"
    _logger.info("%s %d of %d: graph %s (%s), %.1f s", state, turn.done, turn.total, turn.name, turn.key, turn.seconds)


def _compile(store: Store, key: str, name: str, remote: Path | None) -> tuple[float, Exception | None]:
    started = time.perf_counter()
    try:
        store.obtain(key, _build(store.root, key), name=name)
        if remote is not None:
            save(store.root, remote, key)
    except (NeuronError, OSError, ValueError) as error:
        return time.perf_counter() - started, error
    return time.perf_counter() - started, None


def _build(root: Path, key: str) -> Callable[[Path], dict[str, Any]]:
    """Return the build of a captured entry: the same files, and what the compiler makes of them."""

    def build(folder: Path) -> dict[str, Any]:
        metadata = read_metadata(root, key)
        parts, module = metadata["key_parts"], verify_module(root, key)
        for name in (FX_GRAPH, EXAMPLE_INPUTS):
            source = root / key / name
            if source.is_file() and not source.is_symlink():
                shutil.copyfile(source, folder / name)
        stablehlo = LoweredGraph(module, metadata["stablehlo_digest"], metadata["operations"])
        lowered = backend.Lowered(stablehlo, parts["target"], tuple(parts["args"]), str(metadata["name"]))
        backend.compile_lowered(lowered, folder, key)
        return metadata

    return build
