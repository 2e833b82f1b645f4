# SPDX-License-Identifier: Apache-2.0
"""Ops that the StableHLO interpreter lacks, compiled and run on the device, against NumPy and PyTorch."""

# ruff: noqa: E501 - lines of MLIR are not wrapped

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from host_program_oracle import HostProgram
from native_executor import run_native
from stablehlo_reference import Array, main, sample, tensor

from libtorch_neuronx_lite.hostcc.compiler import compile_module


def _run(module: str, inputs: list[Array]) -> list[Array]:
    neff, _ = compile_module(module.encode(), "native", "test")
    return run_native(neff, HostProgram(neff).signature, inputs)


@pytest.mark.parametrize(
    ("kind", "source", "result", "length", "expected"),
    [
        ("FFT", ((2, 8), "c64"), ((2, 8), "c64"), "8", lambda x: np.fft.fft(x)),
        ("IFFT", ((2, 8), "c64"), ((2, 8), "c64"), "8", lambda x: np.fft.ifft(x)),
        ("RFFT", ((2, 8), "f32"), ((2, 5), "c64"), "8", lambda x: np.fft.rfft(x)),
        ("IRFFT", ((2, 5), "c64"), ((2, 8), "f32"), "8", lambda x: np.fft.irfft(x, 8)),
        ("FFT", ((2, 4, 6), "c64"), ((2, 4, 6), "c64"), "4, 6", lambda x: np.fft.fft2(x)),
    ],
)
def test_fft(
    kind: str,
    source: tuple[tuple[int, ...], str],
    result: tuple[tuple[int, ...], str],
    length: str,
    expected: Callable[[Array], Array],
) -> None:
    body = f"%r = stablehlo.fft %a0, type = {kind}, length = [{length}] : ({tensor(*source)}) -> {tensor(*result)}"
    x = sample(*source, np.random.default_rng(0))
    (got,) = _run(main([source], [tensor(*result)], body, "%r"), [x])
    np.testing.assert_allclose(got, expected(x), rtol=1e-5, atol=1e-5)


def test_random_bits_repeat_and_move_on() -> None:
    body = """%s, %r = stablehlo.rng_bit_generator %a0, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<1000xui32>)"""
    module = main([((2,), "u64")], ["tensor<2xui64>", "tensor<1000xui32>"], body, "%s, %r")
    start = np.array([7, 0], np.uint64)
    state, bits = _run(module, [start])
    again_state, again = _run(module, [start])
    np.testing.assert_array_equal(bits, again)
    np.testing.assert_array_equal(state, again_state)
    _, following = _run(module, [state])
    assert not np.array_equal(bits, following)
    assert 0.45 < np.mean(bits > 2**31) < 0.55


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("erf", torch.erf), ("erfc", torch.erfc), ("erf_inv", torch.erfinv), ("lgamma", torch.lgamma),
        ("digamma", torch.digamma), ("acos", torch.acos), ("asin", torch.asin), ("atan", torch.atan),
        ("asinh", torch.asinh), ("atanh", torch.atanh), ("cosh", torch.cosh), ("sinh", torch.sinh), ("tan", torch.tan),
        ("bessel_i1e", torch.special.i1e),
    ],
)  # fmt: skip
def test_chlo_unary(name: str, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = sample((50,), "f32", np.random.default_rng(1), 0.05, 0.95)
    module = main(
        [((50,), "f32")], ["tensor<50xf32>"], f"%r = chlo.{name} %a0 : tensor<50xf32> -> tensor<50xf32>", "%r"
    )
    (got,) = _run(module, [x])
    np.testing.assert_allclose(got, expected(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_top_k() -> None:
    body = "%r:2 = chlo.top_k(%a0, k = 3) : tensor<4x20xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)"
    x = sample((4, 20), "f32", np.random.default_rng(2))
    values, indices = _run(main([((4, 20), "f32")], ["tensor<4x3xf32>", "tensor<4x3xi32>"], body, "%r#0, %r#1"), [x])
    expected = torch.from_numpy(x).topk(3)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(indices, expected.indices.numpy())


def test_total_order_comparison() -> None:
    body = "%r = stablehlo.compare LT, %a0, %a1, TOTALORDER : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>"
    left = np.array([-0.0, 0.0, np.nan, 1, -np.inf], np.float32)
    right = np.array([0.0, -0.0, 1, np.nan, np.inf], np.float32)
    module = main([((5,), "f32")] * 2, ["tensor<5xi1>"], body, "%r")
    (got,) = _run(module, [left, right])
    assert got.tolist() == [True, False, False, True, True]
