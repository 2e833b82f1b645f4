# SPDX-License-Identifier: Apache-2.0
"""How torch.compile asks about the device. Importing this module imports torch._dynamo (seconds); `register()` is
called when a compile backend of this package is registered, never when the package is imported."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import device_interface

from . import properties, selection, streams
from .memory import memory_allocated
from .selection import Device

_NAME = "neuron"


class NeuronInterface(device_interface.DeviceInterface):
    """The methods that Dynamo and AOTAutograd call; Triton and raw kernel launches do not exist on this device."""

    device = selection.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """Properties for compiler worker processes, which must not start a runtime: recorded by the parent."""

        @staticmethod
        def set_device(device: int) -> None:
            """Record the device that the worker stands for."""
            device_interface.caching_worker_current_devices[_NAME] = device

        @staticmethod
        def current_device() -> int:
            """Return the recorded device, else the current one."""
            recorded = device_interface.caching_worker_current_devices.get(_NAME)
            return selection.current_device() if recorded is None else recorded

        @staticmethod
        def get_device_properties(device: Device = None) -> properties.DeviceProperties:
            """Return the properties as the parent process recorded them."""
            cache = device_interface.caching_worker_device_properties
            if _NAME not in cache:
                cache[_NAME] = [properties.get_device_properties(index) for index in range(selection.device_count())]
            index = NeuronInterface.Worker.current_device() if device is None else selection.device_index(device)
            found: properties.DeviceProperties = cache[_NAME][index]
            return found

    current_device = staticmethod(selection.current_device)
    set_device = staticmethod(selection.set_device)
    device_count = staticmethod(selection.device_count)
    is_available = staticmethod(selection.is_available)
    exchange_device = staticmethod(selection.exchange_device)
    maybe_exchange_device = staticmethod(selection.maybe_exchange_device)
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(streams.synchronize)
    memory_allocated = staticmethod(memory_allocated)
    is_bf16_supported = staticmethod(properties.is_bf16_supported)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        streams.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Return the id of the current stream of a device."""
        return streams.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: Device = None) -> Any:
        """Return the name of the core: there is no numbered capability."""
        return properties.get_device_name(device)


def register() -> None:
    """Tell Dynamo about the device and each of its indices. Idempotent."""
    device_interface.register_interface_for_device(_NAME, NeuronInterface)
    for index in range(selection.device_count()):
        device_interface.register_interface_for_device(f"{_NAME}:{index}", NeuronInterface)
