# SPDX-License-Identifier: Apache-2.0
"""An input that a graph writes keeps its storage; writes through views, int indices and `.data` are not lost."""

from __future__ import annotations

import torch
from eager_oracle import DEVICE, check, compiled


def test_an_updated_cache_keeps_its_storage_and_gets_no_second_copy() -> None:
    rows, cache = torch.randn(1, 2, 2, 4), torch.zeros(1, 2, 4096, 4, device=DEVICE)
    places = torch.tensor([3, 4], device=DEVICE)

    def step(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, places, rows)
        return cache[:, :, :8].sum(2)

    run = compiled(step)
    address, on_device = cache.data_ptr(), rows.to(DEVICE)
    with torch.no_grad():
        run(cache, on_device, places)
        torch.neuron.synchronize()
        before = torch.neuron.memory_allocated(0)
        torch.neuron.reset_peak_memory_stats(0)
        result = run(cache, on_device, places)
        torch.neuron.synchronize()
    assert cache.data_ptr() == address
    assert torch.neuron.max_memory_allocated(0) - before < cache.numel() * 4
    expected = torch.zeros(1, 2, 4096, 4)
    expected[:, :, 3:5] = rows
    torch.testing.assert_close(cache.cpu(), expected)
    torch.testing.assert_close(result.cpu(), expected[:, :, :8].sum(2))


def test_an_output_that_is_an_input_is_that_object() -> None:
    x = torch.randn(3, device=DEVICE)
    with torch.no_grad():
        assert compiled(lambda x: x.add_(1))(x) is x


def test_write_through_an_int_index_then_copy() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0].copy_(y[1])
        y[:, 1] = 3
        return x + y

    check(f, torch.randn(4, 5), torch.randn(4, 5))


def test_write_through_data() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[2] = y[0]
        x.data.copy_(y * 2)
        return x[1] + 1

    check(f, torch.randn(4, 5), torch.randn(4, 5))


def test_data_copy_on_a_buffer_persists() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.data.copy_(self.count + x)
            return self.count * 2

    module = Counter().to(DEVICE)
    run = compiled(module)
    with torch.no_grad():
        for _ in range(3):
            result = run(torch.ones(2, device=DEVICE))
    assert module.count.cpu().tolist() == [3.0, 3.0]
    assert result.cpu().tolist() == [6.0, 6.0]


def test_write_into_a_slice() -> None:
    def f(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cache[:, :, 2:4].copy_(rows)
        return cache * 2

    check(f, torch.zeros(1, 2, 8, 4), torch.randn(1, 2, 2, 4))


def test_the_new_value_returned_beside_the_input_is_a_tensor_of_its_own() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = x + 1
        x.copy_(new)
        return new, x

    x = torch.randn(4, device=DEVICE)
    with torch.no_grad():
        new, same = compiled(f)(x)
    assert same is x
    assert new.data_ptr() != x.data_ptr()
    torch.testing.assert_close(new.cpu(), x.cpu())


def test_one_input_copied_into_another() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(y)
        return y

    check(f, torch.randn(4), torch.randn(4))


def test_two_inputs_exchange_their_values() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        before = x.clone()
        x.copy_(y)
        y.copy_(before)

    check(f, torch.randn(4), torch.randn(4))


def test_a_written_input_that_is_not_contiguous() -> None:
    x, y = torch.randn(5, 4), torch.randn(4, 5)
    on_device = x.to(DEVICE)
    with torch.no_grad():
        compiled(lambda v, y: v.add_(y))(on_device.t(), y.to(DEVICE))
    torch.testing.assert_close(on_device.cpu(), x + y.t())


def test_a_scalar_counter_advances() -> None:
    def f(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        count.add_(x.shape[0])
        return x * count

    check(f, torch.tensor(2), torch.randn(3))
