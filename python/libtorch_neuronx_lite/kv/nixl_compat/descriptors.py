# SPDX-License-Identifier: Apache-2.0
"""Descriptor lists: addresses as tuples, tensors or arrays, their places in registered regions, the runs of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .errors import nixlInvalidParamError, nixlNotFoundError, nixlNotSupportedError

Words = npt.NDArray[np.uint64]
_KINDS = {"DRAM": "DRAM", "VRAM": "VRAM", "cpu": "DRAM", "cuda": "VRAM"}
_COLUMNS = 8  # of the native table of runs


@dataclass(frozen=True)
class DescriptorList:
    """Rows of (address, bytes, device, stride, count): `count` descriptors of `bytes`, `stride` apart.

    Attributes:
        kind: `DRAM` or `VRAM`.
        rows: uint64 [n, 5].
        owners: tensors whose memory it is, kept alive with it.
    """

    kind: str
    rows: Words
    owners: tuple[torch.Tensor, ...] = ()

    def __len__(self) -> int:
        return int(self.rows[:, 4].sum())


class RegistrationList(DescriptorList):
    """A list for `register_memory`."""


def memory_kind(mem_type: str | None) -> str:
    """Return `DRAM` or `VRAM`; raises for what is missing or not memory."""
    if mem_type is None:
        raise nixlInvalidParamError("mem_type must be given with addresses: DRAM or VRAM.")
    if mem_type not in _KINDS:
        raise nixlNotSupportedError(f"mem_type {mem_type!r}: this runtime moves DRAM and VRAM.")
    return _KINDS[mem_type]


def parse(descs: Any, mem_type: str | None, columns: Sequence[int]) -> DescriptorList:
    """Make a list of what NIXL accepts: a tensor, a list of them, tuples, or a 2-D array.

    Args:
        descs: the descriptors.
        mem_type: needed for tuples and arrays.
        columns: allowed widths of a row; more than 3 numeric columns are (stride, count).
    """
    if isinstance(descs, DescriptorList):
        return descs
    if isinstance(descs, torch.Tensor):
        return _from_tensors([descs])
    if isinstance(descs, np.ndarray):
        if descs.ndim != 2 or descs.shape[1] not in columns:
            wanted = " or ".join(f"Nx{n}" for n in columns)
            raise nixlInvalidParamError(f"an array of descriptors is {wanted}, not {descs.shape}.")
        rows = descs.astype(np.uint64, copy=True)
        return DescriptorList(memory_kind(mem_type), _with_strides(rows))
    items = list(descs)
    if not items:
        return DescriptorList(memory_kind(mem_type or "DRAM"), np.zeros((0, 5), np.uint64))
    if all(isinstance(item, torch.Tensor) for item in items):
        return _from_tensors(items)
    try:
        rows = np.array([[int(value) for value in item[:3]] for item in items], dtype=np.uint64)
    except (TypeError, ValueError, OverflowError):
        raise nixlInvalidParamError("a descriptor is a tuple (address, bytes, device) of whole numbers.") from None
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise nixlInvalidParamError("a descriptor is a tuple (address, bytes, device).")
    return DescriptorList(memory_kind(mem_type), _with_strides(rows))


def _from_tensors(tensors: Sequence[torch.Tensor]) -> DescriptorList:
    kinds = {"DRAM" if tensor.device.type == "cpu" else "VRAM" for tensor in tensors}
    if len(kinds) != 1 or not all(tensor.is_contiguous() for tensor in tensors):
        raise nixlInvalidParamError("the tensors of a list must be contiguous and on one kind of device.")
    rows = [(t.data_ptr(), t.numel() * t.element_size(), max(0, t.get_device())) for t in tensors]
    return DescriptorList(kinds.pop(), _with_strides(np.array(rows, dtype=np.uint64)), tuple(tensors))


def _with_strides(rows: Words) -> Words:
    if rows.shape[1] == 5:
        return rows
    single = np.ones((len(rows), 1), np.uint64)
    return np.hstack([rows[:, :3], rows[:, 1:2], single])


@dataclass(frozen=True)
class Regions:
    """Registered regions of one side, sorted by address."""

    begin: Words
    end: Words
    index: Words

    @classmethod
    def of(cls, regions: Sequence[tuple[int, int, int]]) -> Regions:
        """Make it of (address, bytes, index in the agent's table)."""
        table = np.array(sorted(regions), dtype=np.uint64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 0] + table[:, 1], table[:, 2])


@dataclass(frozen=True)
class PreparedList:
    """Rows whose whole extents lie in registered regions: places by index are arithmetic from here on.

    Attributes:
        agent: name of the other side; empty for the local side.
        region: per row, the index in its agent's table.
        offset: per row, of its first descriptor.
        size: per row, bytes of a descriptor.
        stride: per row, between descriptors.
        first: per row, the index of its first descriptor; one more at the end.
    """

    agent: str
    region: Words
    offset: Words
    size: Words
    stride: Words
    first: npt.NDArray[np.int64]

    @classmethod
    def make(cls, agent: str, descs: DescriptorList, regions: Regions) -> PreparedList:
        """Find each row's region; raises nixlNotFoundError with the first row that has none."""
        address, size, _, stride, count = descs.rows.T
        if (count == 0).any() or (size == 0).any():
            raise nixlInvalidParamError("a descriptor of no bytes, or a row of none.")
        # Far beyond any address space, and below what uint64 arithmetic can hold.
        span = size.astype(np.float64) + (count.astype(np.float64) - 1) * stride.astype(np.float64)
        if (address.astype(np.float64) + span > 2.0**62).any():
            raise nixlInvalidParamError("a descriptor lies beyond the address space.")
        last = address + size + (count - 1) * stride
        place = np.searchsorted(regions.begin, address, side="right").astype(np.int64) - 1
        known = place >= 0
        if len(regions.end):
            known &= last <= regions.end[place]
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            length, who = int(last[row] - address[row]), agent or "this agent"
            raise nixlNotFoundError(f"{length} bytes at {int(address[row]):#x} are not registered at {who}.")
        first = np.concatenate([[0], np.cumsum(count.astype(np.int64))])
        return cls(agent, regions.index[place], address - regions.begin[place], size, stride, first)

    def __len__(self) -> int:
        return int(self.first[-1])

    def at(self, indices: Any) -> tuple[Words, Words, Words]:
        """Return (region, offset, bytes) of the descriptors with these indices."""
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= len(self)):
            raise nixlInvalidParamError(f"descriptor indices must be 0 to {len(self) - 1}.")
        if len(self.first) == len(self) + 1:  # every row is one descriptor
            return self.region[wanted], self.offset[wanted], self.size[wanted]
        row = np.searchsorted(self.first, wanted, side="right") - 1
        step = (wanted - self.first[row]).astype(np.uint64)
        return self.region[row], self.offset[row] + step * self.stride[row], self.size[row]


def runs_of(source: tuple[Words, Words, Words], target: tuple[Words, Words, Words]) -> tuple[Words, int]:
    """Return the native table of runs of two equally long selections, neighbours joined, and how many went in."""
    if len(source[0]) != len(target[0]) or (source[2] != target[2]).any():
        raise nixlInvalidParamError(
            f"the two sides of a transfer have {len(source[0])} and {len(target[0])} descriptors, "
            "and each pair must be equally long."
        )
    count = len(source[0])
    if count:
        joined = np.ones(count, bool)  # whether a run begins here
        joined[1:] = ~(
            (source[0][1:] == source[0][:-1])
            & (target[0][1:] == target[0][:-1])
            & (source[1][1:] == source[1][:-1] + source[2][:-1])
            & (target[1][1:] == target[1][:-1] + target[2][:-1])
        )
        begins = np.flatnonzero(joined)
    else:
        begins = np.zeros(0, np.int64)
    runs = np.zeros((len(begins), _COLUMNS), np.uint64)
    runs[:, 0], runs[:, 1] = source[0][begins], target[0][begins]
    runs[:, 2], runs[:, 3] = source[1][begins], target[1][begins]
    runs[:, 4] = np.add.reduceat(source[2], begins) if count else 0
    runs[:, 7] = 1
    return runs, count
