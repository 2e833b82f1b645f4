# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements: as arguments, inside a graph, and as results."""

from __future__ import annotations

from typing import Any

import torch
from eager_oracle import DEVICE, check, compiled


def test_arguments_and_results_without_elements() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 1, x @ y, x.t(), torch.cat([x, y.t()[:2]]), x.new_zeros(0, 2), x.softmax(-1), x[:0].sort(0)

    check(f, torch.randn(0, 3), torch.randn(3, 3))


def test_a_graph_without_anything_to_compute() -> None:
    check(lambda x: (x.new_zeros(0, 2), torch.arange(0, device=x.device)), torch.randn(2))


def test_reductions_of_nothing_are_constants() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sum(), x.sum(0), x.prod(), x.mean(), (x > 0).any(), (x > 0).all(), x.t() @ x, torch.logsumexp(x, 0)

    check(f, torch.randn(0, 3))


def test_slices_of_no_length() -> None:
    def f(x: torch.Tensor) -> Any:
        x[:0].fill_(3.0)
        empty = x[2:2]
        return empty, torch.cat([empty, x]), empty.sum(0), torch.nn.functional.pad(empty, (1, 1, 2, 0), value=4.0)

    check(f, torch.randn(4, 3))


def test_writes_of_nothing_leave_the_target() -> None:
    def f(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> Any:
        return x.index_put((index,), values), x.index_add(0, index, values), x.gather(0, index.reshape(0, 1)) * 2

    check(f, torch.randn(4, 3), torch.zeros(0, dtype=torch.long), torch.randn(0, 3))


def test_an_update_of_an_empty_argument() -> None:
    check(lambda x, y: (x.add_(1), y.mul_(2)), torch.randn(0, 3), torch.randn(2))


def test_attention_without_keys() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    check(f, torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 4))


def test_every_call_makes_its_own_empty_result() -> None:
    run = compiled(lambda x: (x * 2, x.new_empty(0, 4)))
    x = torch.ones(2, device=DEVICE)
    first, second = run(x)[1], run(x)[1]
    assert first is not second
    assert first.shape == (0, 4)
    assert first.device == x.device
