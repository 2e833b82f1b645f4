# SPDX-License-Identifier: Apache-2.0
"""Chains of elementwise steps and row reductions: what becomes one step, what must not; values stay the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_graph import compile_function, run_function

Function = Callable[..., torch.Tensor]


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) * y


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _check(function: Function, arguments: list[torch.Tensor], tolerance: float) -> list[str]:
    neff, program = compile_function(function, arguments)
    (got,) = run_function(neff, program, arguments)
    torch.testing.assert_close(got, function(*arguments), rtol=tolerance, atol=tolerance, equal_nan=True)
    return program.ops()


@pytest.mark.parametrize("rows", [1, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_known_chains_are_one_step(dtype: torch.dtype, rows: int) -> None:
    x, y, weight = torch.randn(rows, 96).to(dtype), torch.randn(rows, 96).to(dtype), torch.randn(96).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert _check(_norm, [x, weight], tolerance) == ["fused"]
    assert _check(_gate, [x, y], tolerance) == ["fused"]
    assert _check(_softmax, [x], tolerance) == ["fused"]
    assert _check(lambda x, y, w: _norm(x + y, w), [x, y, weight], tolerance) == ["fused"]


def test_values_that_hurt() -> None:
    x = torch.randn(6, 64)
    x[0, 3], x[1, 4], x[2, 5], x[3], x[4] = torch.nan, torch.inf, -torch.inf, 1e-40, 0
    for dtype in (torch.float32, torch.bfloat16):
        special, ones = x.to(dtype), torch.ones(64, dtype=dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        _check(_norm, [special, ones], tolerance)
        _check(_gate, [special, special], tolerance)
        _check(_softmax, [special], tolerance)
    tiny = torch.full((4, 64), 2.0**-130)
    assert _check(lambda a, b: (a + b) - b, [tiny, tiny], 0.0) == ["fused"]


def test_a_result_that_others_read_is_written() -> None:
    weight = torch.randn(64, 64)

    def residual(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return total, (torch.tanh(total) * 2) @ w

    arguments = [torch.randn(5, 64), torch.randn(5, 64), weight]
    neff, program = compile_function(residual, arguments)
    assert program.ops() == ["fused", "dot_general"]
    for got, expected in zip(run_function(neff, program, arguments), residual(*arguments), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_steps_on_both_sides_of_a_product_are_apart() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x * 2)
        return torch.exp(h @ w) + h

    assert _check(layer, [torch.randn(4, 64), torch.randn(64, 64) / 8], 1e-4) == ["fused", "dot_general", "fused"]


def test_a_transposed_reader_reads_memory() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * x
        return torch.exp(y.t()) + y

    ops = _check(turned, [torch.randn(64, 64)], 1e-5)
    assert ops.count("fused") == 2


def test_integers_and_doubles_stay_single_steps() -> None:
    x = torch.arange(200).reshape(2, 100)
    assert "fused" not in _check(lambda a: (a + a) * a, [x], 0.0)
    assert "fused" not in _check(lambda a: (a + a) * a, [x.double()], 0.0)


_UNARY: dict[str, Function] = {
    "neg": torch.neg, "abs": torch.abs, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "cos": torch.cos,
    "half": lambda x: x.to(torch.bfloat16).float(), "sum": lambda x: x.sum(-1, keepdim=True).expand_as(x),
    "max": lambda x: x.amax(-1, keepdim=True).expand_as(x), "turn": lambda x: x.transpose(0, 1).contiguous(),
    "slice": lambda x: torch.cat((x[:, 32:], x[:, :32]), 1),
}  # fmt: skip
_BINARY: dict[str, Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "matmul": lambda a, b: a @ b / 8
}  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*_UNARY, *_BINARY]), st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_any_graph_keeps_its_values(choices: list[tuple[str, int, int]]) -> None:
    """The values of every step, whatever is fused around it: the program is run as it is written, and natively."""

    def graph(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values = [x, y]
        for name, first, second in choices:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(_UNARY[name](a) if name in _UNARY else _BINARY[name](a, b))
            values[-1] = torch.tanh(values[-1])  # keeps magnitudes
        return values[-2:] if len(values) > 3 else [values[-1] + x]

    arguments = [torch.randn(64, 64), torch.randn(64, 64)]
    neff, program = compile_function(graph, arguments)
    expected = graph(*arguments)
    interpreted = program.run([argument.numpy() for argument in arguments])
    for native, read, eager in zip(run_function(neff, program, arguments), interpreted, expected, strict=True):
        torch.testing.assert_close(native, eager, rtol=2e-2, atol=2e-2)  # roundings to bf16 may fall either way
        np.testing.assert_allclose(native.numpy(), read, rtol=2e-2, atol=2e-2)
