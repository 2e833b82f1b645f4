# SPDX-License-Identifier: Apache-2.0
"""Right shifts of unsigned bytes, which torch-mlir lowers to the shift that copies the sign bit."""

from __future__ import annotations

import torch


def shift_right(x: torch.Tensor, amount: torch.Tensor | int) -> torch.Tensor:
    """Decompose `aten.bitwise_right_shift` and `aten.__rshift__` of uint8: shifted as int32."""
    if torch.result_type(x, amount) != torch.uint8:
        return NotImplemented  # type: ignore[no-any-return]
    wide = amount.to(torch.int32) if isinstance(amount, torch.Tensor) else amount
    return (x.to(torch.int32) >> wide).to(torch.uint8)
