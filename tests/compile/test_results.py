# SPDX-License-Identifier: Apache-2.0
"""What a graph may return and take: views, plain values, duplicates, unused inputs, CPU tensors, other layouts."""

from __future__ import annotations

import torch
from eager_oracle import DEVICE, check, compiled


def test_views_of_inputs_share_storage() -> None:
    x = torch.randn(4, 5, device=DEVICE)
    with torch.no_grad():
        row, turned, same = compiled(lambda x: (x[1], x.t(), x))(x)
    assert same is x
    assert row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (row.storage_offset(), row.stride(), turned.stride()) == (5, (1,), (1, 5))
    torch.testing.assert_close(row.cpu(), x.cpu()[1])


def test_views_of_an_input_that_is_itself_a_view() -> None:
    x = torch.randn(6, 5)
    with torch.no_grad():
        row = compiled(lambda x: x[1])(x.to(DEVICE)[2:])
    torch.testing.assert_close(row.cpu(), x[3])


def test_views_of_results_share_storage() -> None:
    with torch.no_grad():
        whole, turned, row = compiled(lambda x: (lambda y: (y, y.t(), y[1]))(x + 1))(torch.ones(4, 5, device=DEVICE))
    assert turned.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert (turned.stride(), row.storage_offset()) == ((1, 5), 5)


def test_results_have_eagers_strides() -> None:
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        for f in (lambda x: (x + 1).permute(2, 0, 1), lambda x: x.permute(2, 0, 1) + 1):
            got = compiled(f)(x.to(DEVICE))
            assert got.stride() == f(x).stride()
            torch.testing.assert_close(got.cpu(), f(x))


def test_plain_values_and_none() -> None:
    check(lambda x: (None, 3, x + 1, 2.5, True, [x * 2, None], {"a": x - 1}), torch.randn(3))


def test_duplicated_results_and_arguments() -> None:
    check(lambda x: (lambda y: (y, y, x, x))(x + 1), torch.randn(3))
    x = torch.randn(3)
    with torch.no_grad():
        run = compiled(lambda a, b: a * 2 + b)
        same = x.to(DEVICE)
        torch.testing.assert_close(run(same, same).cpu(), x * 3)
        torch.testing.assert_close(run(same, (x + 1).to(DEVICE)).cpu(), x * 3 + 1)


def test_unused_arguments() -> None:
    check(lambda x, unused, y: x + y, torch.randn(3), torch.randn(7), torch.randn(3))


def test_a_graph_without_inputs() -> None:
    with torch.no_grad():
        assert compiled(lambda: torch.ones(3, device=DEVICE) * 2)().cpu().tolist() == [2.0, 2.0, 2.0]


def test_a_zero_dimensional_cpu_tensor_is_moved_at_each_call() -> None:
    run = compiled(lambda x, s: (x * s, s + 1))
    with torch.no_grad():
        for value in (2.5, -1.0):
            product, number = run(torch.ones(3, device=DEVICE), torch.tensor(value))
            assert product.device.type == "neuron"
            assert product.cpu().tolist() == [value] * 3
            assert (number.device.type, number.item()) == ("cpu", value + 1)


def test_moves_between_devices_inside_a_graph() -> None:
    with torch.no_grad():
        there, back = compiled(lambda x: ((x * 2).cpu() + 1, (x * 2).cpu().to(x.device) + 1))(
            torch.ones(3, device=DEVICE)
        )
    assert (there.device.type, back.device.type) == ("cpu", "neuron")
    assert there.tolist() == back.cpu().tolist() == [3.0, 3.0, 3.0]


def test_tensors_made_in_the_function_become_part_of_the_graph() -> None:
    table = torch.randn(64, 64)  # beyond the size of a literal: an argument, moved once
    small = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 64)
    run = compiled(lambda x: (x @ table.to(x.device), x[:, :3] * small.to(x.device)))
    with torch.no_grad():
        for _ in range(2):
            product, scaled = run(x.to(DEVICE))
    torch.testing.assert_close(product.cpu(), x @ table, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scaled.cpu(), x[:, :3] * small)


def test_graph_breaks_make_several_graphs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * (2 if y.sum().item() > 0 else 3)

    x = torch.ones(3)
    with torch.no_grad():
        assert compiled(f)(x.to(DEVICE)).cpu().tolist() == [4.0] * 3


def test_inference_mode() -> None:
    with torch.inference_mode():
        assert compiled(lambda x: x + 1)(torch.ones(2, device=DEVICE)).cpu().tolist() == [2.0, 2.0]


def test_an_output_feeds_the_next_call_before_it_is_read() -> None:
    run = compiled(lambda x: x + 1)
    with torch.no_grad():
        x = torch.zeros(4, device=DEVICE)
        for _ in range(50):
            x = run(x)
    assert x.cpu().tolist() == [50.0] * 4


def test_the_second_core() -> None:
    with torch.no_grad():
        result = compiled(lambda x: x + 1)(torch.ones(2, device="neuron:1"))
    assert (str(result.device), result.cpu().tolist()) == ("neuron:1", [2.0, 2.0])
