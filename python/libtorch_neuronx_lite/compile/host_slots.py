# SPDX-License-Identifier: Apache-2.0
"""A limit on the compilers that run on one host at a time, whichever processes start them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .. import envs
from .._errors import CacheError
from .._log import get_logger
from . import key_lock
from .key_lock import KeyLock

_logger = get_logger(__name__)

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 30.0


@contextlib.contextmanager
def compiler_slot(name: str) -> Iterator[None]:
    """Hold one of the host's NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS slots for a compiler, waiting until one is free.

    The wait has no limit of its own: each holder has one, and a slot ends with the process that holds it. Locks of keys
    that this thread holds count from when the slot is taken.

    Args:
        name: of the graph, for those who look.
    """
    folder = _folder()
    waited = said = time.monotonic()
    while True:
        limit: int = envs.NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS
        for number in range(limit):
            lock = KeyLock(folder, f"slot-{number}")
            if lock.try_acquire(name):
                break
        else:
            if time.monotonic() - said > _PROGRESS_SECONDS:
                said = time.monotonic()
                _logger.info("graph %s: all %d compilers of this host are busy, for %.0f s", name, limit, said - waited)
            time.sleep(_POLL_SECONDS)
            continue
        break
    try:
        key_lock.renew()
        yield
    finally:
        lock.release()


def _folder() -> Path:
    """Return the folder of this user's slots; refuse one that somebody else made."""
    folder = Path(tempfile.gettempdir()) / f"neuron_compile_slots_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat().st_uid
    if owner != os.geteuid() or folder.is_symlink():
        raise CacheError(f"{folder}, which counts the compilers of this host, belongs to user {owner}. Remove it.")
    return folder
