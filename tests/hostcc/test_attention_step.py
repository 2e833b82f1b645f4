# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention becomes one step, and equals CPU eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_graph import compile_function, run_function

from libtorch_neuronx_lite.fx_passes.attention import scaled_dot_product_attention

# The order of sums differs from eager's kernel; bf16 and f16 round the weights at the same place.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def _operands(dtype: torch.dtype, heads: int, key_heads: int, rows: int, columns: int) -> list[torch.Tensor]:
    return [torch.randn(2, h, n, 16).to(dtype) for h, n in ((heads, rows), (key_heads, columns), (key_heads, columns))]


def _check(
    tensors: list[torch.Tensor], options: dict[str, Any], mask: torch.Tensor | None = None, steps: int = 1
) -> list[str]:
    arguments = tensors if mask is None else [*tensors, mask]
    neff, program = compile_function(lambda *a: scaled_dot_product_attention(*a, **options), arguments)
    assert program.ops().count("attention") == steps
    (got,) = run_function(neff, program, arguments)
    expected = torch.nn.functional.scaled_dot_product_attention(*arguments, **options)
    tolerance = TOLERANCE[tensors[0].dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return program.ops()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("rows", "heads"), [(1, (4, 4)), (1, (6, 2)), (7, (6, 2)), (7, (4, 4))])
def test_attention_is_one_step(dtype: torch.dtype, rows: int, heads: tuple[int, int]) -> None:
    tensors = _operands(dtype, *heads, rows, 37)
    options = {"enable_gqa": heads[0] != heads[1]}
    _check(tensors, options)
    flags = torch.rand(2, 1, rows, 37) < 0.6
    flags[..., 0] = True
    _check(tensors, options, flags)
    flags[0, 0, 0] = False  # a row that sees nothing
    _check(tensors, options, flags.expand(2, heads[0], rows, 37))
    _check(tensors, {**options, "scale": 0.3}, torch.randn(rows, 37).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_mask(dtype: torch.dtype) -> None:
    _check(_operands(dtype, 2, 2, 9, 9), {"is_causal": True})


def test_values_that_hurt() -> None:
    tensors = _operands(torch.float32, 2, 2, 5, 11)
    tensors[0][0, 0, 1] = torch.nan
    tensors[1][1, 1, 3] = torch.inf
    tensors[2][1, 0, 4] = torch.inf
    neff, program = compile_function(lambda *a: scaled_dot_product_attention(*a), tensors)
    assert program.ops() == ["attention"]
    # As the formula says; eager's flash kernel turns a row of NaN into zeros.
    expected = torch.softmax(tensors[0] @ tensors[1].transpose(2, 3) * 0.25, -1) @ tensors[2]
    (got,) = run_function(neff, program, tensors)
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_the_reader_of_the_result_gets_it_in_its_own_order() -> None:
    tensors = [tensor[:1] for tensor in _operands(torch.bfloat16, 4, 2, 6, 12)]
    weight = torch.randn(64, 64).to(torch.bfloat16)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2).reshape(1, 6, 64) @ w

    neff, program = compile_function(layer, [*tensors, weight])
    assert program.ops() == ["attention", "dot_general"]
    (got,) = run_function(neff, program, [*tensors, weight])
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True)
    torch.testing.assert_close(got, out.transpose(1, 2).reshape(1, 6, 64) @ weight, rtol=3e-2, atol=1e-1)


def test_weights_that_somebody_reads_are_kept() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.bmm(q, k.transpose(1, 2)) * 0.25
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-1, keepdim=True)
        return torch.bmm(weights, v) / total, weights

    tensors = [torch.randn(2, 5, 8) for _ in range(3)]
    neff, program = compile_function(attend, tensors)
    assert "attention" not in program.ops()
    for got, expected in zip(run_function(neff, program, tensors), attend(*tensors), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    neff, program = compile_function(lambda *a: attend(*a)[0], tensors)
    assert program.ops() == ["attention"]


def test_a_sum_that_starts_elsewhere_is_not_attention() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = torch.exp(scores - scores.amin(-1, keepdim=True))
        return torch.bmm(weights, v) / weights.sum(-1, keepdim=True)

    tensors = [torch.randn(2, 5, 8) for _ in range(3)]
    neff, program = compile_function(attend, tensors)
    assert "attention" not in program.ops()
    torch.testing.assert_close(run_function(neff, program, tensors)[0], attend(*tensors), rtol=1e-4, atol=1e-4)
