# SPDX-License-Identifier: Apache-2.0
"""Streams and events. Every stream of a device issues into its core's one queue, which runs in order.

Work issued on two streams of one device is therefore ordered by the time of issue, which is a stronger order than
PyTorch promises. Waiting for an event of another device blocks the calling thread.
"""

from __future__ import annotations

from types import TracebackType

import torch

from .. import _C
from .selection import Device, device_index

Stream = torch.Stream
Event = torch.Event

_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1.value  # an int, as torch.Stream wants it


def current_stream(device: Device = None) -> torch.Stream:
    """Return this thread's current stream of `device`."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """Return the default stream of `device`."""
    return torch.Stream(stream_id=0, device_index=device_index(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` current in this thread, and its device too; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def synchronize(device: Device = None) -> None:
    """Wait until everything queued on `device` is done.

    Raises:
        RuntimeError: the first execution error since the last wait or read on this device, or a time-out
            (NEURON_LIBTORCH_EXECUTION_TIMEOUT).
    """
    _C.synchronize(device_index(device))


class StreamContext:
    """Context manager that makes a stream current in this thread; None does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context manager that makes `stream` current."""
    return StreamContext(stream)
