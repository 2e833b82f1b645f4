# SPDX-License-Identifier: Apache-2.0
"""Block lists of requests, and the token range that two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
