# SPDX-License-Identifier: Apache-2.0
"""Token ranges and runs between two layouts, with region numbers of the agents' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _C


@dataclass(frozen=True)
class BlockList:
    """The blocks of one request at one rank.

    Attributes:
        layout: of the rank.
        blocks: ids in token order.
        first_token: position of the first slot of the first block.
    """

    layout: _C.KvLayout
    blocks: Sequence[int]
    first_token: int = 0

    @property
    def end(self) -> int:
        """One past the last token position that the blocks of all context ranks together can hold."""
        return self.first_token + len(self.blocks) * self.layout.block_tokens * self.layout.context_size


def common_tokens(one: BlockList, other: BlockList) -> tuple[int, int]:
    """Return the token positions [begin, end) that both lists hold; an empty range when there are none."""
    begin = max(one.first_token, other.first_token)
    return begin, max(begin, min(one.end, other.end))


def table_runs(runs: Any, source_regions: Sequence[int], target_regions: Sequence[int]) -> Any:
    """Return `runs` (uint64 [n, 8]) with the layouts' region numbers replaced by those of the agents' tables."""
    for column, table in ((0, source_regions), (1, target_regions)):
        numbers = runs[:, column].copy()
        for layout_region, index in enumerate(table):
            runs[numbers == layout_region, column] = index
    return runs
