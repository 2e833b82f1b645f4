# SPDX-License-Identifier: Apache-2.0
"""Where an index points: from the end, through masks, with steps, along diagonals, and through views that overlap."""

from __future__ import annotations

from typing import Any

import torch
from eager_oracle import DEVICE, check, compiled


def test_indices_count_from_the_end() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        narrow = i.to(torch.int32)
        return x[i], x[:, i], x[i, j], x[i, :, j], x[..., narrow], torch.take(x, i)

    check(f, torch.randn(4, 5, 6), torch.tensor([-1, 0, -4]), torch.tensor([2, -1, -5]))


def test_writes_count_from_the_end() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
        put = x.index_put((i,), v)
        added = x.index_put((i,), v, accumulate=True)
        x[:, i] = 7.0
        return put, added

    check(f, torch.randn(4, 4), torch.tensor([0, -1]), torch.randn(2, 4))


def test_indices_known_to_count_from_the_start_cost_nothing() -> None:
    from libtorch_neuronx_lite.fx_passes.negative_indices import wrap_negative_indices

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return x[torch.arange(3).unsqueeze(1), torch.arange(1, 3)], x[i]

    gm = torch.export.export(Rows(), (torch.randn(4, 5), torch.tensor([1]))).graph_module
    wrap_negative_indices(gm)
    targets = [node.target for node in gm.graph.nodes]
    assert targets.count(torch.ops.aten.where.self) == 1
    assert targets.count(torch.ops.aten.index.Tensor) == 2


def test_writes_through_a_mask() -> None:
    def f(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, row: torch.Tensor) -> Any:
        x[x > 0.5] = 0.0
        number = torch.tensor(7.0, device=x.device)
        return (
            x.index_put((rows,), values),
            x.index_put((rows,), row),
            x.index_put((rows,), row.unsqueeze(0), accumulate=True),
            x.index_put((x < -0.5,), number),
        )

    check(f, torch.randn(3, 4), torch.tensor([True, False, True]), torch.randn(2, 4), torch.randn(4))


def test_writes_with_steps_and_along_the_diagonal() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x[::2, 1:] = -1.0
        x[1::3, ::2] *= 2
        x[:, -2:] += 1
        y.diagonal().fill_(9)
        y.diagonal(1).add_(1)

    check(f, torch.randn(8, 5), torch.randn(4, 4))


def test_triangles() -> None:
    sizes = [(4, 4, 0), (3, 5, 1), (4, 3, -1), (2, 5, -3), (3, 3, 2), (5, 2, 1)]

    def f(x: torch.Tensor) -> Any:
        lower = [torch.tril_indices(*size, device=x.device) for size in sizes]
        upper = [torch.triu_indices(*size, device=x.device) for size in sizes]
        return lower, upper, x[tuple(lower[0])]

    check(f, torch.randn(4, 4))


def test_one_hot() -> None:
    check(lambda x: torch.nn.functional.one_hot(x, 5), torch.tensor([1, 0, 4]))


def test_arguments_that_overlap() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.mul_(2)
        b.add_(1)
        return a.sum() + b, b * 3

    def views(base: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(base[:2], base[1:3]), (base[0], base.t()[0]), (base, base[1]), (base, base)]

    for case in range(4):
        expected = torch.arange(16.0).reshape(4, 4)
        actual = expected.to(DEVICE)
        run = compiled(f)
        want = f(*views(expected)[case])
        got = run(*views(actual)[case])
        torch.testing.assert_close([t.cpu() for t in got], list(want))
        torch.testing.assert_close(actual.cpu(), expected)
