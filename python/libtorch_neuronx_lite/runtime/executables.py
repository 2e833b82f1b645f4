# SPDX-License-Identifier: Apache-2.0
"""Loads NEFFs; graphs that are the same program on the same device share one loaded executable."""

from __future__ import annotations

import threading
import weakref

from .. import _C

_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[tuple[str, int, int, int], _C.Executable] = weakref.WeakValueDictionary()


def load(key: str, neff: bytes, device_index: int, rank: int = 0, world_size: int = 1) -> _C.Executable:
    """Return the executable for a key on a device; it is unloaded when the last graph that uses it is gone.

    `rank` of `world_size` is this process's place in the NEFF's collectives; 0 of 1 without collectives.

    Raises:
        ValueError: the NEFF is broken or was built for the other runtime.
        torch.OutOfMemoryError: the device has no room for it.
    """
    with _lock:
        place = (key, device_index, rank, world_size)
        executable = _loaded.get(place)
        if executable is None:
            executable = _C.Executable.load(neff, device_index, rank, world_size)
            _loaded[place] = executable
        return executable
