# SPDX-License-Identifier: Apache-2.0
"""Which devices there are, and which one is current in this thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from .. import _C
from .._log import get_logger

Device = torch.device | str | int | None
"""What names a device: `torch.device`, `"neuron:1"`, an index, or None for the current one."""


def device_index(device: Device) -> int:
    """Return the index that `device` names; the current device for None and for `neuron` without an index.

    Raises:
        ValueError: a device of another type.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "neuron":
        raise ValueError(f"expected a neuron device, got '{device}'")
    return _C.current_device() if device.index is None else device.index


def device_count() -> int:
    """Return the number of visible neuron cores, 0 when the runtime cannot be asked. Does not start the runtime."""
    try:
        return _C.device_count()
    except (RuntimeError, ValueError) as error:
        get_logger(__name__).debug("no neuron device: %s", error)
        return 0


def is_available() -> bool:
    """Whether at least one neuron core is visible. Does not start the runtime."""
    return device_count() > 0


# What torch.compiler.assume_constant_result would set; importing it here would import Dynamo.
for _constant in (device_count, is_available):
    setattr(_constant, "_dynamo_marked_constant", True)  # noqa: B010


def current_device() -> int:
    """Return the index of this thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make `device` current in this thread; a negative index changes nothing.

    Raises:
        ValueError: no such device; the message names the valid range and the variable that sets it.
    """
    index = device_index(device)
    if index >= 0:
        _C.set_device(index)


def exchange_device(device: int) -> int:
    """Make `device` current and return the index of the one before; a negative index changes nothing."""
    return _C.exchange_device(device)


def maybe_exchange_device(device: int) -> int:
    """The same as `exchange_device`; the name that generic code uses to leave a device it may not have entered."""
    return _C.exchange_device(device)


class device:
    """Context manager that makes a device current in this thread: `with torch.neuron.device(1): ...`."""

    def __init__(self, device: Device) -> None:
        self.idx = device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = _C.exchange_device(self.idx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; does nothing for other objects."""

    def __init__(self, obj: Any) -> None:
        where = getattr(obj, "device", None)
        super().__init__(where if isinstance(where, torch.device) and where.type == "neuron" else -1)
