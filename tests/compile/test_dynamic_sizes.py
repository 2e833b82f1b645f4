# SPDX-License-Identifier: Apache-2.0
"""With symbolic sizes each set of concrete sizes gets an executable of its own, and the values are right."""

from __future__ import annotations

import logging

import pytest
import torch
from eager_oracle import DEVICE, compiled


def test_the_default_mode_over_several_sizes(caplog: pytest.LogCaptureFixture) -> None:
    run = compiled(lambda x: (x + 1).sum(-1) * x.shape[0], dynamic=None)
    with torch.no_grad(), caplog.at_level(logging.DEBUG, logger="libtorch_neuronx_lite"):
        for rows in (3, 4, 5, 4, 7):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(run(x.to(DEVICE)).cpu(), (x + 1).sum(-1) * rows)
    buckets = [record for record in caplog.records if "bucket" in record.message]
    assert len(buckets) == 3  # 4, 5 and 7; the first size, 3, was compiled as a static graph


def test_symbolic_numbers() -> None:
    run = compiled(lambda x, s: (x * s, s + 1, x.shape[0] + 2), dynamic=True)
    with torch.no_grad():
        for rows, number in ((3, 2), (4, 3), (5, 7)):
            x = torch.randn(rows, 5)
            product, more, count = run(x.to(DEVICE), number)
            torch.testing.assert_close(product.cpu(), x * number)
            assert (more, count) == (number + 1, rows + 2)


def test_updated_inputs() -> None:
    def f(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cache[: rows.shape[0]].copy_(rows)
        return cache.sum()

    run = compiled(f, dynamic=True)
    with torch.no_grad():
        for count in (3, 4, 5):
            rows, cache = torch.randn(count, 5), torch.zeros(8, 5, device=DEVICE)
            address = cache.data_ptr()
            total = run(cache, rows.to(DEVICE))
            assert cache.data_ptr() == address
            torch.testing.assert_close(cache.cpu()[:count], rows)
            torch.testing.assert_close(total.cpu(), rows.sum())


def test_views_with_symbolic_sizes() -> None:
    run = compiled(lambda x: (x.reshape(-1), x.t() + 1, x[:, : x.shape[1] // 2]), dynamic=True)
    with torch.no_grad():
        for shape in ((3, 4), (5, 6), (4, 8)):
            x = torch.randn(shape)
            flat, turned, half = run(x.to(DEVICE))
            torch.testing.assert_close(flat.cpu(), x.reshape(-1))
            torch.testing.assert_close(turned.cpu(), x.t() + 1)
            torch.testing.assert_close(half.cpu(), x[:, : shape[1] // 2])


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_python_float_that_changes(dynamic: bool | None) -> None:
    """Dynamo hands a float that changed to the graph as a float64 tensor on the CPU, which the device does not have."""
    run = compiled(lambda x, n, s: (x[:n] * s, n + 1, s * 2, s), dynamic=dynamic)
    x = torch.randn(9)
    with torch.no_grad():
        for count, number in ((3, 1.5), (5, 2.5), (2, 1.5), (0, 0.0)):
            product, more, double, same = run(x.to(DEVICE), count, number)
            torch.testing.assert_close(product.cpu(), x[:count] * number)
            assert (more, double, same) == (count + 1, number * 2, number)
            assert type(double) is float


def test_sizes_down_to_zero() -> None:
    run = compiled(lambda x, y: (x @ y).softmax(-1)[: x.shape[0] // 2 + 1] * x.shape[0], dynamic=None)
    with torch.no_grad():
        for rows in (3, 5, 1, 0, 5):
            x, y = torch.randn(rows, 4), torch.randn(4, rows + 1)
            expected = (x @ y).softmax(-1)[: rows // 2 + 1] * rows
            torch.testing.assert_close(run(x.to(DEVICE), y.to(DEVICE)).cpu(), expected)
