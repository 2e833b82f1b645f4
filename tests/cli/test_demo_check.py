# SPDX-License-Identifier: Apache-2.0
"""The demo's verdict, on logits made for the purpose."""

from __future__ import annotations

import math

import pytest
import torch

from libtorch_neuronx_lite.cli.demo.check import LOGIT_TOLERANCE, bfloat16_step, compare


def _row(best: int, value: float = 16.0, second: tuple[int, float] | None = None) -> torch.Tensor:
    row = torch.zeros(1, 32)
    row[0, best] = value
    if second:
        row[0, second[0]] = second[1]
    return row


@pytest.mark.parametrize("value", [1.0, 1.5, 16.0, -3.25, 1e-20, 3.0e38])
def test_bfloat16_step_is_the_distance_to_the_next_number(value: float) -> None:
    x = torch.tensor(value, dtype=torch.bfloat16)
    bits = x.view(torch.int16) + 1
    assert bfloat16_step(float(x)) == abs(float(bits.view(torch.bfloat16)) - float(x))


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_bfloat16_step_of_no_ordinary_number_is_zero(value: float) -> None:
    assert bfloat16_step(value) == 0.0


def test_identical() -> None:
    rows = [_row(3), _row(5)]
    result = compare([3, 5], rows, rows, torch.float32)
    assert (result.verdict, result.tokens_identical, result.first_divergence) == ("identical", 2, None)
    assert result.logit_error == 0.0


def test_a_neighbour_in_bfloat16_is_a_tie_and_in_float32_is_not() -> None:
    eager = [_row(3), _row(5, 16.0, (6, 15.875))]
    ties = compare([3, 6], eager, eager, torch.bfloat16)
    assert (ties.verdict, ties.tokens_identical, ties.first_divergence, ties.tied_positions) == ("ties", 1, 1, (1,))
    assert compare([3, 6], eager, eager, torch.float32).verdict == "diverges"


def test_more_than_one_step_diverges() -> None:
    eager = [_row(5, 16.0, (6, 15.75))]
    result = compare([6], eager, eager, torch.bfloat16)
    assert (result.verdict, result.first_divergence) == ("diverges", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_logit_out_of_tolerance_diverges_although_the_tokens_agree(dtype: torch.dtype) -> None:
    off = _row(3)
    off[0, 9] = 16.0 * LOGIT_TOLERANCE[dtype] * 1.5
    result = compare([3, 3], [_row(3), off], [_row(3), _row(3)], dtype)
    assert (result.verdict, result.first_divergence, result.tokens_identical) == ("diverges", 1, 2)


def test_nan_diverges() -> None:
    off = _row(3)
    off[0, 9] = math.nan
    result = compare([3], [off], [_row(3)], torch.bfloat16)
    assert (result.verdict, result.logit_error) == ("diverges", math.inf)


def test_a_missing_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 and 2 rows"):
        compare([3, 3], [_row(3)], [_row(3), _row(3)], torch.float32)
