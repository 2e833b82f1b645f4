# SPDX-License-Identifier: Apache-2.0
"""Descriptor lists: places in registered regions, checked once and used by number afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _C
from .errors import KvLayoutError


class Descriptors:
    """One side of transfers by index.

    Args:
        rows: whole numbers [n, 3] or [n, 5]: region (an index in its agent's table), offset, bytes, and for [n, 5] also
            stride and count: such a row is `count` descriptors of `bytes`, `stride` apart.

    Raises:
        KvLayoutError: the table has another shape, a row moves nothing, or it ends beyond the address space.
    """

    def __init__(self, rows: Any) -> None:
        table = _whole_numbers(rows, np.uint64, "a descriptor row")
        if table.ndim == 2 and table.shape[1] == 3:
            single = np.ones((len(table), 1), np.uint64)
            table = np.hstack([table, np.zeros_like(single), single])
        try:
            self.native = _C.KvDescriptors(table)
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None

    def __len__(self) -> int:
        return len(self.native)


def index_array(indices: Any) -> npt.NDArray[Any]:
    """Return indices as the native call takes them; raises KvLayoutError for what is no index."""
    if isinstance(indices, np.ndarray) and indices.dtype == np.uint32 and indices.ndim == 1:
        return indices
    return _whole_numbers(indices, np.uint32, "an index of a descriptor").reshape(-1)


def _whole_numbers(values: Any, kind: type[np.unsignedinteger[Any]], what: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(kind)
    if array.dtype.kind not in "iu" or int(array.min()) < 0 or int(array.max()) > np.iinfo(kind).max:
        raise KvLayoutError(
            f"{what} has whole numbers from 0 to {np.iinfo(kind).max}, not {array.dtype} {values!r:.80}."
        )
    return array.astype(kind)
