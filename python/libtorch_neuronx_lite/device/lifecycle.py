# SPDX-License-Identifier: Apache-2.0
"""The start of the runtime at the first use of the device, and what a forked child is told."""

from __future__ import annotations

from .. import _C, envs
from .._log import get_logger

_warned = False


def is_initialized() -> bool:
    """Whether this process has started the runtime and not closed it."""
    return _C.is_initialized()


def init() -> None:
    """Start the runtime now instead of at the first tensor. Idempotent.

    Raises:
        RuntimeError: the runtime library does not load, a core is held by another process, the runtime was closed, or
            this is a forked child of a process that had used the device.
    """
    global _warned
    if not _warned:
        _warned = True
        for name, nearest in envs.unknown_variables().items():
            hint = f"; did you mean {nearest}?" if nearest else ""
            get_logger(__name__).warning("The environment variable %s is not one this package reads%s", name, hint)
    _C.initialize()


# Called by torch before the first factory function on the device, and again in a forked child.
_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had used the device; torch.manual_seed asks."""
    return _C.in_bad_fork()
