# SPDX-License-Identifier: Apache-2.0
"""Loads NEFFs; graphs that are the same program on the same device share one loaded executable."""

from __future__ import annotations

import threading
import weakref

from .. import _C

_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[tuple[str, int], _C.Executable] = weakref.WeakValueDictionary()


def load(key: str, neff: bytes, device_index: int) -> _C.Executable:
    """Return the executable for a key on a device; it is unloaded when the last graph that uses it is gone.

    Raises:
        ValueError: the NEFF is broken or was built for the other runtime.
        torch.OutOfMemoryError: the device has no room for it.
    """
    with _lock:
        executable = _loaded.get((key, device_index))
        if executable is None:
            executable = _C.Executable.load(neff, device_index)
            _loaded[key, device_index] = executable
        return executable
