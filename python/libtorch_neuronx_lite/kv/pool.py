# SPDX-License-Identifier: Apache-2.0
"""Host memory for KV caches that a peer on this host can map: each pool is a sealed-size memfd of its own."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class _Pool:
    address: int
    bytes: int
    fd: int


_pools: dict[int, _Pool] = {}  # by address; memory of a pool never moves
_lock = threading.Lock()


def shared_pool(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a zeroed, contiguous CPU tensor whose memory is a memfd that holds nothing else.

    An agent that registers it, or parts of it in whole pages, lets peers on this host read it through a mapping
    (provider `shm`); other host memory goes by `cma` or `tcp`. The memory lives as long as tensors on it do.

    Raises:
        ValueError: the shape is empty.
    """
    count = math.prod(shape)
    if count <= 0:
        raise ValueError(f"a pool of shape {tuple(shape)} is empty.")
    size = count * dtype.itemsize
    fd = os.memfd_create("kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # A peer that holds the descriptor must not be able to cut the file under our mapping.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED)
    except BaseException:
        os.close(fd)
        raise
    tensor = torch.frombuffer(mapping, dtype=dtype, count=count).view(tuple(shape))
    address = tensor.data_ptr()
    with _lock:
        _pools[address] = _Pool(address, size, fd)
    # The storage keeps the mapping alive; when that is gone, so is the pool.
    weakref.finalize(mapping, _forget, address, fd)
    return tensor


def exported_range(address: int, size: int) -> tuple[int, int]:
    """Return the descriptor and the offset in it of a range that lies in a shared pool, else (-1, 0)."""
    with _lock:
        for pool in _pools.values():
            if pool.address <= address and address + size <= pool.address + pool.bytes:
                return pool.fd, address - pool.address
    return -1, 0


def _forget(address: int, fd: int) -> None:
    with _lock:
        _pools.pop(address, None)
    os.close(fd)
