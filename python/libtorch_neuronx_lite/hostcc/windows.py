# SPDX-License-Identifier: Apache-2.0
"""Storages and strided windows on them: the memory of a host program before it has addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from libtorch_neuronx_lite.hostcc.dtypes import Array, size_of


@dataclass(eq=False, slots=True)
class Storage:
    """One piece of memory. `kind` is input, output, constant or arena; a temporary starts in the arena."""

    kind: str
    bytes: int
    index: int = 0  # input, output: position in the signature
    offset: int = 0  # constant, arena: bytes from the start; set by the planner
    data: Array | None = field(default=None, repr=False)  # constant: the elements, dense
    merged_into: Storage | None = None  # set when another storage takes this one's place

    def resolve(self) -> Storage:
        """Return the storage that stands for this one after merging."""
        storage = self
        while storage.merged_into is not None:
            storage = storage.merged_into
        return storage


@dataclass(frozen=True, slots=True)
class Window:
    """A strided view of a storage. Strides and offset count elements; a stride of 0 repeats."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        """The number of elements, repeated ones counted."""
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return _strides_equal(self.shape, self.strides, dense_strides(self.shape))

    @property
    def covers_storage(self) -> bool:
        """Whether this is the whole storage in row-major order."""
        return self.offset == 0 and self.is_dense and self.elements * size_of(self.dtype) == self.storage.bytes

    @property
    def is_injective(self) -> bool:
        """Whether no two elements share memory, so that a step may write here."""
        reach = 0
        for stride, size in sorted((s, n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1):
            if stride <= reach:
                return False
            reach += stride * (size - 1)
        return True

    def same_elements(self, other: Window) -> bool:
        """Whether both name the same memory in the same order with elements of the same size."""
        return (
            self.storage.resolve() is other.storage.resolve()
            and self.shape == other.shape
            and self.offset == other.offset
            and size_of(self.dtype) == size_of(other.dtype)
            and _strides_equal(self.shape, self.strides, other.strides)
        )

    def transpose(self, permutation: list[int]) -> Window:
        """Return the window whose dimension i is this one's ``permutation[i]``."""
        return replace(
            self,
            shape=tuple(self.shape[p] for p in permutation),
            strides=tuple(self.strides[p] for p in permutation),
        )

    def slice(self, starts: list[int], limits: list[int], steps: list[int]) -> Window:
        """Return the window of the elements start, start + step, ... below limit, per dimension."""
        shape = tuple(
            max(0, -(-(limit - start) // step)) for start, limit, step in zip(starts, limits, steps, strict=True)
        )
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        if 0 in shape:
            offset = self.offset
        return replace(
            self,
            shape=shape,
            offset=offset,
            strides=tuple(s * step for s, step in zip(self.strides, steps, strict=True)),
        )

    def broadcast(self, shape: tuple[int, ...], dims: list[int]) -> Window:
        """Return this window repeated to `shape`; ``dims[i]`` is where dimension i lands."""
        strides = [0] * len(shape)
        for own, dim in enumerate(dims):
            strides[dim] = self.strides[own] if self.shape[own] == shape[dim] else 0
        return replace(self, shape=shape, strides=tuple(strides))

    def reshape(self, shape: tuple[int, ...]) -> Window | None:
        """Return the same elements in row-major order under another shape, or None when no strides express it."""
        if math.prod(shape) == 0 or self.elements == 0:
            return replace(self, shape=shape, strides=dense_strides(shape))
        # Join neighbouring dimensions that step through memory as one, then cut each joint run to the new shape.
        runs: list[tuple[int, int]] = []  # size, stride of the innermost
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if runs and runs[-1][1] == stride * size:
                runs[-1] = (runs[-1][0] * size, stride)
            else:
                runs.append((size, stride))
        strides = [0] * len(shape)
        dim = len(shape) - 1
        for run_size, run_stride in reversed(runs):
            left, step = run_size, run_stride
            while left > 1:
                while shape[dim] == 1:
                    dim -= 1
                if left % shape[dim]:
                    return None
                strides[dim] = step
                step *= shape[dim]
                left //= shape[dim]
                dim -= 1
        return replace(self, shape=shape, strides=canonical_strides(shape, tuple(strides)))

    def split(self, factors: list[tuple[int, ...]]) -> Window:
        """Return this window with dimension i cut into ``factors[i]``, whose product is its size; never a copy."""
        strides: list[int] = []
        for stride, parts in zip(self.strides, factors, strict=True):
            inner = [stride] * len(parts)
            for position in range(len(parts) - 2, -1, -1):
                inner[position] = inner[position + 1] * parts[position + 1]
            strides += inner
        return replace(self, shape=tuple(size for parts in factors for size in parts), strides=tuple(strides))


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major strides, in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def canonical_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides with those of one-element dimensions, which may be anything, set as a dense tensor has them.

    Windows on the same elements then have the same strides, which is how kernels tell that they are the same.
    """
    canonical = list(strides)
    following = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            canonical[dim] = following
        else:
            following = strides[dim] * shape[dim]
    return tuple(canonical)


def dense(storage: Storage, dtype: str, shape: tuple[int, ...]) -> Window:
    """Return the row-major window of `shape` from the start of the storage."""
    return Window(storage, dtype, shape, dense_strides(shape))


def _strides_equal(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or size <= 1 for size, x, y in zip(shape, a, b, strict=True)) or 0 in shape


def common_factors(a: tuple[int, ...], b: tuple[int, ...]) -> list[int] | None:
    """Return the coarsest sizes that cut both shapes of equal product in row-major order, or None when none exist.

    (2, 6) and (4, 3) share (2, 2, 3); (2, 3) and (3, 2) share nothing.
    """
    left, right = [size for size in a if size != 1], [size for size in b if size != 1]
    factors: list[int] = []
    while left and right:
        small = min(left[0], right[0])
        for side in (left, right):
            if side[0] % small:
                return None
            side[0] //= small
            if side[0] == 1:
                side.pop(0)
        factors.append(small)
    return factors


def group_factors(shape: tuple[int, ...], factors: list[int]) -> list[tuple[int, ...]]:
    """Return which of `factors` make up each dimension of `shape`; a dimension of one element gets (1,)."""
    groups: list[tuple[int, ...]] = []
    position = 0
    for size in shape:
        taken: list[int] = []
        while math.prod(taken) != size:
            taken.append(factors[position])
            position += 1
        groups.append(tuple(taken) or (1,))
    return groups
