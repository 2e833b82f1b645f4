# SPDX-License-Identifier: Apache-2.0
"""Scalars, NaN, unsigned bytes and window sizes at the edges of what operators take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager_oracle import check
from torch.nn import functional as F


def test_tensors_without_dimensions() -> None:
    def f(x: torch.Tensor) -> Any:
        return (
            x.softmax(0),
            x.cumsum(0),
            x.argmax(),
            x.argmin(),
            x.sort(),
            x.topk(1),
            x.max(0),
            x.log_softmax(0),
            x.sum(0),
            x.any(0),
        )

    check(f, torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_differs_from_itself(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> Any:
        return x == x, x != x, x <= x, x >= x, x < x, x - x, x / x, torch.where(x == x, x, 0.0)

    check(f, torch.tensor([float("nan"), float("inf"), 1.0, 0.0], dtype=dtype))


def test_bytes_have_no_sign() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x >> 1, x >> y, x << 1, x // 3, x % 7, x > 130, x.float(), x.max()

    check(f, torch.tensor([5, 255, 128], dtype=torch.uint8), torch.tensor([1, 2, 7], dtype=torch.uint8))


def test_reciprocals_of_integers() -> None:
    check(lambda x: (1 / x, 2.5 / x, x.reciprocal()), torch.tensor([1, -2, 7]))


def test_any_and_all_over_several_dimensions() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.any((0, 2)), x.all((1, -1)), torch.any(x, (0, 1), keepdim=True), (x > 0).any(), x.all(dim=())

    check(f, torch.randint(0, 2, (2, 3, 4)))


@pytest.mark.parametrize(("kernel", "stride", "padding", "size"), [(3, 2, 1, 24), (3, 2, 0, 8), (2, 3, 1, 7)])
def test_windows_that_round_up(kernel: int, stride: int, padding: int, size: int) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            F.max_pool2d(x, kernel, stride, padding, ceil_mode=True),
            F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True),
            F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, kernel, stride, padding, divisor_override=2),
            F.max_pool3d(y, kernel, stride, padding, ceil_mode=True),
            F.avg_pool3d(y, kernel, stride, padding, ceil_mode=True),
        )

    x = -torch.randn(1, 2, size, size + 1).abs()
    check(f, x, x[:, :, :, :5].reshape(1, 2, size, 5, 1).expand(-1, -1, -1, -1, 5).contiguous())
