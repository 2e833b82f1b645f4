# SPDX-License-Identifier: Apache-2.0
"""MLIR work in small child processes: an abort, a hang or a leak in native code is one exception here, not an end.

A worker imports torch_mlir and never torch; see `bootstrap` for how, `jobs` for what it may run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libtorch_neuronx_lite.worker.errors import JobError, WorkerError
from libtorch_neuronx_lite.worker.pool import WorkerPool, WorkerResult, shared_pool

__all__ = ["JobError", "WorkerError", "WorkerPool", "WorkerResult", "run", "shared_pool"]


def run(
    job: str,
    blobs: dict[str, bytes],
    params: dict[str, Any],
    *,
    timeout: float,
    name: str,
    repro_dir: Path | None = None,
) -> WorkerResult:
    """Run one job in the process-wide pool; `WorkerPool.run` describes arguments and errors."""
    return shared_pool().run(job, blobs, params, timeout=timeout, name=name, repro_dir=repro_dir)
