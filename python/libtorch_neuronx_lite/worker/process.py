# SPDX-License-Identifier: Apache-2.0
"""One worker process as the parent sees it: start, one request at a time, limits, end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libtorch_neuronx_lite.worker.errors import WorkerError, signal_name
from libtorch_neuronx_lite.worker.protocol import ProtocolError, encode, read_frame

START_TIMEOUT = 60.0  # seconds; about 0.1 is usual, a loaded machine with a cold file cache takes far longer
STDERR_TAIL_LINES = 20
_POLL = 0.1  # seconds between two looks at the worker's memory
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Pipe:
    """The reading end of the worker's answers, with a deadline and a memory check on every wait."""

    def __init__(self, process: WorkerProcess, deadline: float) -> None:
        self._process, self._deadline = process, deadline

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._process.wait_ready(self._deadline, writing=False)
            piece = os.read(self._process.answers_fd, min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


class WorkerProcess:
    """Owns one child process with its pipes. Not for use by two threads at once; the pool sees to that."""

    def __init__(self, jobs: Mapping[str, str], memory_limit_mb: int, extra_path: tuple[str, ...] = ()) -> None:
        """Start the process and wait until it is ready; raise WorkerError (reason ``start``) when it is not."""
        self.memory_limit_mb = memory_limit_mb
        self._stderr = tempfile.TemporaryFile(prefix="nxl-worker-stderr-")  # noqa: SIM115 - closed in close()
        # -I: neither the current folder nor PYTHONPATH decides what is imported; the parent's search path does.
        self._popen = subprocess.Popen(
            [sys.executable, "-I", str(_BOOTSTRAP)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            process_group=0,
            bufsize=0,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._requests, self._answers = self._popen.stdin, self._popen.stdout
        os.set_blocking(self._requests.fileno(), False)
        search_path = [*extra_path, *(str(Path(entry).resolve()) for entry in sys.path if entry)]
        try:
            self.request({"sys_path": search_path, "jobs": dict(jobs)}, {}, START_TIMEOUT, "start of the worker")
        except WorkerError as error:
            raise WorkerError(
                "start",
                f"the compile worker did not start: {sys.executable} -I {_BOOTSTRAP}",
                exit_signal=error.exit_signal,
                exit_code=error.exit_code,
                stderr_tail=error.stderr_tail,
            ) from None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def answers_fd(self) -> int:
        """The descriptor that answers are read from."""
        return self._answers.fileno()

    def request(
        self, header: dict[str, Any], blobs: dict[str, bytes], timeout: float, what: str
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send one frame and return the answer. Any failure kills the process and raises WorkerError."""
        os.ftruncate(self._stderr.fileno(), 0)
        self._stderr.seek(0)
        deadline = time.monotonic() + timeout
        try:
            for piece in encode(header, blobs):
                self._write(piece, deadline)
            return read_frame(_Pipe(self, deadline))  # type: ignore[arg-type]  # read() is all that it uses
        except TimeoutError:
            raise self._kill("timeout", f"{what} took longer than its limit of {timeout:g} s") from None
        except MemoryError:
            raise self._kill(
                "memory",
                f"{what} used more than {self.memory_limit_mb} MB of memory; "
                "raise NEURON_LIBTORCH_WORKER_MEMORY_MB if the machine has it",
            ) from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._kill("died", what) from None
        except ProtocolError as error:
            raise self._kill("died", f"{what}: {error}") from None
        except BaseException:  # KeyboardInterrupt and the like: the answer would be read by the next request
            self.close()
            raise

    def wait_ready(self, deadline: float, *, writing: bool) -> None:
        """Block until the pipe moves; raise TimeoutError at the deadline and MemoryError over the memory limit."""
        fd = self._requests.fileno() if writing else self.answers_fd
        poller = select.poll()
        poller.register(fd, select.POLLOUT if writing else select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if poller.poll(min(_POLL, left) * 1000):
                return
            if self._resident_bytes() > self.memory_limit_mb << 20:
                raise MemoryError

    def _resident_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            return 0

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._requests.fileno(), view[: 1 << 20]) :]
            except BlockingIOError:
                self.wait_ready(deadline, writing=True)

    def _kill(self, reason: str, message: str) -> WorkerError:
        exit_signal: int | None = None
        exit_code: int | None = None
        if reason == "died":
            try:
                code = self._popen.wait(5)
            except subprocess.TimeoutExpired:
                message += ": the worker closed its pipe"
            else:
                if code < 0:
                    exit_signal = -code
                    message += f": the worker process ended with signal {signal_name(-code)}"
                else:
                    exit_code = code
                    message += f": the worker process ended with exit status {code}"
        self._kill_group()
        tail = self._stderr_tail()
        self.close()
        return WorkerError(reason, message, exit_signal=exit_signal, exit_code=exit_code, stderr_tail=tail)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it is left to end by itself
            self._popen.wait(5)

    def _stderr_tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 16384))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join(line[:400] for line in lines[-STDERR_TAIL_LINES:])

    def close(self) -> None:
        """End the process and its group, and free the pipes. May be called again."""
        if self._popen.returncode is None:
            self._kill_group()
        for stream in (self._requests, self._answers, self._stderr):
            stream.close()

    def abandon(self) -> None:
        """Forget the process without touching it: for a fork's child, whose parent still uses it."""
        for stream in (self._requests, self._answers, self._stderr):
            stream.close()
        self._popen.returncode = 0  # not our child: subprocess must neither wait for it nor warn about it
