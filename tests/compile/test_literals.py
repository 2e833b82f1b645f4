# SPDX-License-Identifier: Apache-2.0
"""Tensors written into the model's code, and constants that one number fills, in every dtype."""

from __future__ import annotations

import pytest
import torch
from eager_oracle import check

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_literals_of_several_elements(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        literal = torch.tensor([1, 0, 1, 1], dtype=dtype, device=x.device)
        uniform = torch.tensor([1, 1, 1, 1], dtype=dtype, device=x.device)
        return x + literal, torch.cat([literal, uniform]), torch.where(x > 0, literal, uniform), literal * 1

    check(function, torch.tensor([True, False, True, False]))
    check(function, torch.randn(4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants_that_one_number_fills(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = torch.full((2, 3), 1, dtype=dtype, device=x.device)
        return torch.cat([x, filled]), torch.zeros(5, dtype=dtype, device=x.device), x == filled[0]

    check(function, torch.randint(0, 2, (4, 3)).to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool], ids=str)
def test_scans_of_unsigned_values(dtype: torch.dtype) -> None:
    check(lambda x: (x.cummax(0), x.cummin(0)), torch.tensor([3, 200, 0, 255, 1]).to(dtype))


def test_clamping_bools() -> None:
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    check(lambda a, b: (a.clamp_max(b), a.clamp_min(b), torch.minimum(a, b), torch.maximum(a, b)), a, b)
