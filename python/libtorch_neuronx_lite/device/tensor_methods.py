# SPDX-License-Identifier: Apache-2.0
"""Two things that torch decides by a list of device names, in which a renamed private device is missing."""

from __future__ import annotations

import enum
import functools

import torch
from torch import _tensor_str
from torch.utils.dlpack import DLDeviceType

from .._compat import DEVICE_NAME


def extend() -> None:
    """Print device tensors from a copy on the host, and let `torch.from_dlpack` take them. Call it once.

    torch prints the tensors of other compiling devices from such a copy; on the device itself a single `print` would
    run a dozen operators, each with its warning, and would fail when eager fallback is forbidden. `__dlpack_device__`
    knows private devices only by the name they have before they are given one.
    """
    format_values = _tensor_str._tensor_str
    dlpack_device = torch.Tensor.__dlpack_device__

    @functools.wraps(format_values)
    def format_host_values(self: torch.Tensor, indent: int) -> str:
        text: str = format_values(self.cpu() if self.device.type == DEVICE_NAME else self, indent)  # type: ignore[no-untyped-call]
        return text

    @functools.wraps(dlpack_device)
    def dlpack_device_by_name(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type == DEVICE_NAME:
            return DLDeviceType.kDLExtDev, self.device.index
        return dlpack_device(self)

    _tensor_str._tensor_str = format_host_values
    torch.Tensor.__dlpack_device__ = dlpack_device_by_name  # type: ignore[method-assign]
