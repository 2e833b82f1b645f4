# SPDX-License-Identifier: Apache-2.0
"""Division with rounding and remainders: integers stay integers, floats round the way PyTorch's CPU kernels do."""

from __future__ import annotations

import torch

from .widening import widen

aten = torch.ops.aten
Operand = torch.Tensor | float


def _operands(a: Operand, b: Operand) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    dtype = torch.result_type(a, b)
    like = a if isinstance(a, torch.Tensor) else b
    assert isinstance(like, torch.Tensor)

    def tensor(x: Operand) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            return x.to(dtype)
        return torch.full((), x, dtype=dtype, device=like.device)

    return tensor(a), tensor(b), dtype


def divide(a: Operand, b: Operand, *, rounding_mode: str | None) -> torch.Tensor:
    """Decompose `aten.div.Tensor_mode` and `aten.div.Scalar_mode`."""
    if rounding_mode is None:
        return aten.div.Tensor(a, b)  # type: ignore[no-any-return]
    x, y, dtype = _operands(a, b)
    if dtype == torch.bool or dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    if not dtype.is_floating_point:
        if rounding_mode == "trunc":
            # Two integer tensors: the form that lowers to one integer division.
            return NotImplemented if a is x and b is y else aten.div.Tensor_mode(x, y, rounding_mode="trunc")
        quotient = aten.div.Tensor_mode(x, y, rounding_mode="trunc")
        return quotient - _crosses(torch.fmod(x, y), y).to(dtype)  # type: ignore[no-any-return]
    x, y = widen(x), widen(y)
    if rounding_mode == "trunc":
        return torch.trunc(x / y).to(dtype)
    return _floor_float(x, y).to(dtype)


def _crosses(rest: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Tell where a truncated division must step towards minus infinity."""
    return (rest != 0) & ((rest < 0) != (divisor < 0))


def _floor_float(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # c10/util/generic_math.h, div_floor_floating.
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where(_crosses(rest, y), quotient - 1, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    whole = torch.where(quotient == 0, (x / y) * 0.0, whole)
    return torch.where(y == 0, x / y, whole)


def floor_divide(a: Operand, b: Operand) -> torch.Tensor:
    """Decompose `aten.floor_divide`."""
    return divide(a, b, rounding_mode="floor")


def remainder(a: Operand, b: Operand) -> torch.Tensor:
    """Decompose `aten.remainder`: the result has the divisor's sign."""
    x, y, dtype = _operands(a, b)
    if dtype == torch.bool:
        return NotImplemented  # type: ignore[no-any-return]
    x, y = widen(x), widen(y)
    rest = torch.fmod(x, y)
    return torch.where(_crosses(rest, y), rest + y, rest).to(dtype)
