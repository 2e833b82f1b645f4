# SPDX-License-Identifier: Apache-2.0
"""Memory of a device, in bytes: what tensors hold, what the allocator has reserved, what the core has."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from .. import _C
from .selection import Device, device_index


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Return the allocator's counters, named as in `torch.accelerator.memory_stats`; empty before the first tensor."""
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that live tensors hold, rounded up to the allocator's 512-byte blocks."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """Return the peak of `memory_allocated` since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device = None) -> int:
    """Return the bytes that the allocator has taken from the core, used or cached."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """Return the peak of `memory_reserved` since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return (free, total) bytes of the core as the runtime counts them. Starts the runtime."""
    return _C.memory_info(device_index(device))


def empty_cache(device: Device = None) -> None:
    """Give cached memory back to the runtime, after the queued work is done; of all devices for None."""
    if device is None:
        _C.empty_all_caches()
    else:
        _C.empty_cache(device_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peaks anew from what is held now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Set the counters of allocations and frees back to zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def memory_summary(device: Device = None) -> str:
    """Return a few lines for people: core, tensors, cache, counters."""
    index = device_index(device)
    free, total = mem_get_info(index)
    stats = memory_stats(index)

    def mebibytes(count: int) -> str:
        return f"{count / 2**20:12,.2f} MiB"

    allocated = stats.get("allocated_bytes.all.current", 0)
    reserved = stats.get("reserved_bytes.all.current", 0)
    lines = [
        f"neuron:{index}",
        f"  core total         {mebibytes(total)}",
        f"  core free          {mebibytes(free)}",
        f"  live tensors       {mebibytes(allocated)}  peak {mebibytes(stats.get('allocated_bytes.all.peak', 0))}",
        f"  reserved           {mebibytes(reserved)}  peak {mebibytes(stats.get('reserved_bytes.all.peak', 0))}",
        f"  cached             {mebibytes(reserved - allocated)}  in {stats.get('segment.all.current', 0)} segments",
        f"  largest free block {mebibytes(_C.largest_free_block(index))}",
        f"  runtime allocations {stats.get('num_device_alloc', 0)}, frees {stats.get('num_device_free', 0)}, "
        f"retries {stats.get('num_alloc_retries', 0)}, out of memory {stats.get('num_ooms', 0)}",
    ]
    return "\n".join(lines)
