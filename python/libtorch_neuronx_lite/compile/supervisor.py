# SPDX-License-Identifier: Apache-2.0
"""Runs one compiler and ends its whole process tree when the process that asked for it cancels or dies.

Started by path as `python -I -S supervisor.py COMMAND...`: standard library only. stdin is the life line: its end is
the order to stop. The command's output goes to stderr; stdout gets one line of JSON, {"status": exit status} with the
number of the signal, negative, for a command that one ended, or {"error": reason, "errno": number} for one that did not
start. The supervisor adopts what its descendants leave behind, so that a compiler's daemon does not outlive it either.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run the command; return 0 when its status was reported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle: it closes the life line
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, process_group=0)
    except OSError as error:
        return _report({"error": error.strerror, "errno": error.errno})
    ended = os.pidfd_open(child.pid)
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    poller.register(ended, select.POLLIN)
    ready = {fd for fd, _ in poller.poll()}
    status = child.wait() if ended in ready else None
    _end_descendants()
    return _report({"status": status})


def _report(result: dict[str, Any]) -> int:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(result).encode() + b"\n")
    return 0


def _end_descendants() -> None:
    """Kill every process below this one, and those that appear meanwhile, until none is left."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            select.select([], [], [], 0.005)
        except ChildProcessError:
            return


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, as /proc tells now."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found = {root}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return sorted(found - {root})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
