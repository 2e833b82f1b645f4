# SPDX-License-Identifier: Apache-2.0
"""The pool of worker processes: started when first needed, reused, bounded, and gone with the process."""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libtorch_neuronx_lite import envs
from libtorch_neuronx_lite.worker.errors import JobError, WorkerError
from libtorch_neuronx_lite.worker.jobs import JOBS
from libtorch_neuronx_lite.worker.process import WorkerProcess
from libtorch_neuronx_lite.worker.protocol import encode


@dataclass(frozen=True)
class WorkerResult:
    """What a job returned: bytes by name, and a JSON object."""

    blobs: dict[str, bytes]
    info: dict[str, Any] = field(default_factory=dict)


class WorkerPool:
    """At most `size` worker processes. Safe to use from several threads; a fork's child starts its own workers."""

    def __init__(
        self, size: int | None = None, *, jobs: Mapping[str, str] = JOBS, extra_path: tuple[str, ...] = ()
    ) -> None:
        """Make an empty pool.

        Args:
            size: the most processes at one time; by default the smaller of 2 and the CPUs of this process.
            jobs: job name -> ``module:function``; a name outside it is refused.
            extra_path: folders that workers search before the parent's ``sys.path``.
        """
        self._size = size if size is not None else min(2, len(os.sched_getaffinity(0)))
        self._jobs, self._extra_path = jobs, extra_path
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._starting = 0
        self._closed = False
        self._owner = os.getpid()

    def abandon(self) -> None:
        """Drop every worker without ending it: for a fork's child."""
        for worker in self._all:
            worker.abandon()
        self._reset()

    def run(
        self,
        job: str,
        blobs: dict[str, bytes],
        params: dict[str, Any],
        *,
        timeout: float,
        name: str,
        repro_dir: Path | None = None,
    ) -> WorkerResult:
        """Run one job in a worker and return its result.

        Args:
            job: a name from the pool's jobs.
            blobs: the job's inputs as bytes.
            params: the job's parameters; plain JSON.
            timeout: seconds, counted from the call: waiting for a free worker is part of it.
            name: what the job works on (a graph's name); errors and the repro file carry it.
            repro_dir: the folder for a file that replays a failed job; no file without it.

        Raises:
            JobError: the job refused its input.
            WorkerError: the process died, hung or outgrew its memory limit; the next call gets a fresh one.
        """
        if job not in self._jobs:
            raise ValueError(f"{job!r} is not a worker job; the jobs are {', '.join(sorted(self._jobs))}")
        header = {"job": job, "params": params, "timeout": timeout, "name": name}
        deadline = time.monotonic() + timeout
        what = f"{job} for {name!r}"
        worker = self._acquire(deadline, what, timeout)
        try:
            answer, results = worker.request(header, blobs, max(deadline - time.monotonic(), 0.001), what)
        except WorkerError as error:
            self._discard(worker)
            repro = _write_repro(repro_dir, header, blobs)
            raise WorkerError(
                error.reason,
                str(error.args[0]).partition("\nlast lines of its stderr:")[0],
                exit_signal=error.exit_signal,
                exit_code=error.exit_code,
                stderr_tail=error.stderr_tail,
                repro=repro,
            ) from None
        except BaseException:
            self._discard(worker)
            raise
        self._release(worker)
        if answer["status"] == "ok":
            return WorkerResult(results, answer["info"])
        raise JobError(
            answer["kind"],
            answer["message"],
            op=answer["op"],
            location=answer["location"],
            traceback=answer["traceback"],
            repro=_write_repro(repro_dir, header, blobs),
        )

    def _acquire(self, deadline: float, what: str, timeout: float) -> WorkerProcess:
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError(f"{what}: the worker pool is closed")
                if self._idle:
                    return self._idle.pop()
                if len(self._all) + self._starting < self._size:
                    self._starting += 1
                    break
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise WorkerError("timeout", f"{what}: no worker was free within {timeout:g} s")
        worker = None
        try:
            worker = WorkerProcess(self._jobs, envs.NEURON_LIBTORCH_WORKER_MEMORY_MB, self._extra_path)
            return worker
        finally:
            with self._changed:
                self._starting -= 1
                if worker is not None:
                    self._all.add(worker)
                self._changed.notify()

    def _release(self, worker: WorkerProcess) -> None:
        with self._changed:
            if self._closed:
                worker.close()
            else:
                self._idle.append(worker)
            self._changed.notify()

    def _discard(self, worker: WorkerProcess) -> None:
        worker.close()
        with self._changed:
            self._all.discard(worker)
            self._changed.notify()

    def close(self) -> None:
        """End every idle worker; one at work ends when its job does. May be called again."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
            self._changed.notify_all()
        for worker in idle:
            worker.close()


def _write_repro(folder: Path | None, header: dict[str, Any], blobs: dict[str, bytes]) -> Path | None:
    if folder is None:
        return None
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{header['name']}-{header['job']}").strip("_.")[:120]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1000):
        path = folder / (f"{stem}.repro" if number == 0 else f"{stem}-{number}.repro")
        try:
            with path.open("xb") as stream:
                stream.writelines(encode(header, blobs))
        except FileExistsError:
            continue
        return path
    return None


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def shared_pool() -> WorkerPool:
    """Return the process-wide pool; made at the first call, closed at exit."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkerPool()
            atexit.register(_pool.close)
        return _pool


def _after_fork_in_child() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
