# SPDX-License-Identifier: Apache-2.0
"""A compiler process from the caller's side: its output bounded, its time limited, its whole tree ended with it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_READ = 1 << 16
_MOST_LOG = 16 << 20  # bytes of output that are kept in the file
_TAIL_READS = 4  # pieces of output that are kept for the error
_END_SECONDS = 10.0


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status, -n after signal n, None when the time was over.
        tail: the last of what it wrote to stdout and stderr.
        seconds: how long it ran.
    """

    status: int | None
    tail: str
    seconds: float


def run(command: Sequence[str], folder: Path, output: Path, timeout: float) -> Ended:
    """Run a command in a folder until it ends or the time is over; its output is appended to a file.

    When the calling process dies, or this function is left by an exception such as KeyboardInterrupt, the command and
    everything that it started are killed.

    Raises:
        OSError: the command could not be started, or the output could not be written.
    """
    started = time.monotonic()
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SUPERVISOR), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        bufsize=0,
    )
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    assert supervisor.stderr is not None
    tail: deque[bytes] = deque(maxlen=_TAIL_READS)
    try:
        with output.open("ab") as file:
            over = _follow(supervisor.stderr, supervisor.stdout, file, tail, started + timeout)
        answer = b"" if over else supervisor.stdout.read(_READ) or b""
    finally:
        _end(supervisor)
    seconds = time.monotonic() - started
    text = b"".join(tail).decode(errors="replace")
    if over:
        return Ended(None, text, seconds)
    result = json.loads(answer) if answer else {"status": supervisor.returncode}
    if "error" in result:
        raise OSError(result["errno"], result["error"], command[0])
    return Ended(int(result["status"]), text, seconds)


def _follow(source: IO[bytes], answers: IO[bytes], file: IO[bytes], tail: deque[bytes], deadline: float) -> bool:
    """Copy output until the supervisor answers; return whether the time was over first."""
    written = file.tell()
    poller = select.poll()
    poller.register(source, select.POLLIN | select.POLLHUP)
    poller.register(answers, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        ready = [fd for fd, _ in poller.poll(left * 1000)]
        if source.fileno() in ready:
            piece = os.read(source.fileno(), _READ)
            if not piece:
                poller.unregister(source)  # closed; the supervisor still has to say how it ended
                continue
            tail.append(piece)
            if written < _MOST_LOG:
                file.write(piece[: _MOST_LOG - written])
                written += len(piece)
                if written >= _MOST_LOG:
                    file.write(f"\n(what followed was left out: {_MOST_LOG >> 20} MiB are kept)\n".encode())
        elif ready:
            return False


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    for stream in (supervisor.stdin, supervisor.stdout, supervisor.stderr):
        if stream is not None:
            stream.close()  # stdin is the life line
    try:
        supervisor.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
