# SPDX-License-Identifier: Apache-2.0
"""The start of the runtime at the first use of the device, and what a forked child is told."""

from __future__ import annotations

import atexit
import time
from pathlib import Path

from .. import _C, envs
from .._log import get_logger

_started = False


def is_initialized() -> bool:
    """Whether this process has started the runtime and not closed it."""
    return _C.is_initialized()


def init() -> None:
    """Start the runtime now instead of at the first tensor. Idempotent.

    Raises:
        RuntimeError: the runtime library does not load, a core is held by another process, the runtime was closed, or
            this is a forked child of a process that had used the device.
    """
    global _started
    if not _started:
        _started = True
        atexit.register(_let_autograd_threads_finish)
        for name, nearest in envs.unknown_variables().items():
            hint = f"; did you mean {nearest}?" if nearest else ""
            get_logger(__name__).warning("The environment variable %s is not one this package reads%s", name, hint)
    _C.initialize()


# Called by torch before the first factory function on the device, and again in a forked child.
_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had used the device; torch.manual_seed asks."""
    return _C.in_bad_fork()


def _let_autograd_threads_finish() -> None:
    """Give torch's autograd threads the GIL once before the interpreter ends.

    The thread of a device drops the last reference to a finished backward pass after the caller has gone on, and
    takes the GIL for it (torch 2.13 keeps a Python context there). If the interpreter is ending by then, Python exits
    the thread in the middle of a destructor, which terminates the process.
    """
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    if any(name.startswith("pt_autograd_") for name in names):
        time.sleep(0.02)
