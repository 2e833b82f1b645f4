# SPDX-License-Identifier: Apache-2.0
"""The module `torch.neuron`: devices, streams, memory, random numbers, and counters of the CPU fallback."""

from __future__ import annotations

from typing import Any

from .._C import (
    default_generator as _default_generator,
)
from .fallback import (
    fallback_counts,
    fallback_mode,
    fallback_total,
    reset_fallback_counts,
    set_fallback_mode,
)
from .lifecycle import _is_in_bad_fork, _lazy_init, init, is_initialized
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .properties import (
    DeviceProperties,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
)
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .selection import (
    current_device,
    device,
    device_count,
    device_of,
    exchange_device,
    is_available,
    maybe_exchange_device,
    set_device,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)


def __getattr__(name: str) -> Any:
    """`_initialized`, which torch.utils.checkpoint asks for, and `default_generators`, one per visible device."""
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return tuple(_default_generator(index) for index in range(device_count()))
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "_is_in_bad_fork",
    "_lazy_init",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "exchange_device",
    "fallback_counts",
    "fallback_mode",
    "fallback_total",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "maybe_exchange_device",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_fallback_counts",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]
