# SPDX-License-Identifier: Apache-2.0
"""What a device is: name, memory, runtime, and the dtypes it works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from .selection import Device, device_index


@dataclass(frozen=True)
class DeviceProperties:
    """One neuron core.

    Attributes:
        name: what kind of core it is.
        index: its place among the visible cores.
        total_memory: bytes of device memory.
        runtime: `nrt` for a chip, `host` for the CPU runtime.
        runtime_version: as the runtime states it.
    """

    name: str
    index: int
    total_memory: int
    runtime: str
    runtime_version: str


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return the properties of a device. Starts the runtime.

    Raises:
        ValueError: no such device.
    """
    return DeviceProperties(**_C.device_properties(device_index(device)))


def get_device_name(device: Device = None) -> str:
    """Return the name of a device. Starts the runtime."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """Return `{"supported_dtypes": set of torch.dtype}`: what a compiled graph may hold.

    float64, uint16, uint32, uint64 and complex tensors may be made on the device; operators on them run on the CPU.
    """
    return torch.accelerator.get_device_capability(device_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that torch.autocast may use on the device."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works on the device: always."""
    return True
