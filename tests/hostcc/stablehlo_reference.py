# SPDX-License-Identifier: Apache-2.0
"""Runs a StableHLO module with the interpreter in torch-mlir's wheel, and compares a compiled program with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from host_program_oracle import HostProgram
from native_executor import run_native
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from libtorch_neuronx_lite.hostcc import reader
from libtorch_neuronx_lite.hostcc.compiler import compile_module
from libtorch_neuronx_lite.hostcc.dtypes import FLOATS, FROM_MLIR, STORAGE, from_numeric, to_numeric
from libtorch_neuronx_lite.hostcc.graph import TensorType

Array = np.ndarray[Any, Any]
MLIR_NAME = {name: mlir for mlir, name in reversed(FROM_MLIR.items())}


def tensor(shape: tuple[int, ...], dtype: str) -> str:
    """Return the MLIR type, such as tensor<2x3xbf16>."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{MLIR_NAME[dtype]}>"


def main(arguments: list[tuple[tuple[int, ...], str]], results: list[str], body: str, returns: str) -> str:
    """Return a module with one function; arguments are %a0, %a1, ..."""
    signature = ", ".join(f"%a{i}: {tensor(*type_)}" for i, type_ in enumerate(arguments))
    types = ", ".join(results)
    return f"func.func @main({signature}) -> ({types}) {{\n{body}\nreturn {returns} : {types}\n}}"


def evaluate_reference(module: str, inputs: list[Array], types: list[tuple[tuple[int, ...], str]]) -> list[Array]:
    """Return the interpreter's results in storage form."""
    context = reader.new_context()
    parsed = reader.parse_module(context, module.encode())
    with context:
        attributes = [
            ir.Attribute.parse(f'dense<"0x{np.ascontiguousarray(array).tobytes().hex()}"> : {tensor(*type_)}')
            for array, type_ in zip(inputs, types, strict=True)
        ]
        results = _stablehlo.eval_module(parsed, attributes)
        out = []
        for result in results:
            shape, element = tuple(result.type.shape), FROM_MLIR[str(result.type.element_type)]
            out.append(np.array(reader.read_elements(result, TensorType(shape, element))))
    return out


def sample(shape: tuple[int, ...], dtype: str, rng: np.random.Generator, low: float = -4, high: float = 4) -> Array:
    """Return an array in storage form; integers lie in [low, high)."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype in FLOATS:
        return from_numeric(rng.uniform(low, high, shape), dtype)
    if dtype in ("c64", "c128"):
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(STORAGE[dtype])
    return rng.integers(max(0, int(low)) if dtype[0] == "u" else int(low), int(high), shape).astype(STORAGE[dtype])


# One rounding of the type: NumPy's, ATen's and MLIR's elementary functions differ in the last bit.
_TOLERANCE = {"bf16": 2**-7, "f16": 2**-10, "f32": 2e-6, "f64": 1e-12, "c64": 2e-6, "c128": 1e-12, "f8e4m3fn": 2**-3}


def assert_same(got: Array, expected: Array, dtype: str) -> None:
    """Compare two arrays in storage form: exactly for integers, within one rounding for floats."""
    assert got.shape == expected.shape
    if dtype not in _TOLERANCE:
        np.testing.assert_array_equal(got, expected)
        return
    tolerance = _TOLERANCE[dtype]
    np.testing.assert_allclose(to_numeric(got, dtype), to_numeric(expected, dtype), rtol=tolerance, atol=tolerance)


def check(
    module: str,
    types: list[tuple[tuple[int, ...], str]],
    inputs: list[Array] | None = None,
    rng: np.random.Generator | None = None,
    *,
    native: bool = True,
) -> HostProgram:
    """Compile, run on the oracle and the device, compare with the interpreter; return the program for more checks."""
    rng = rng or np.random.default_rng(0)
    inputs = inputs if inputs is not None else [sample(*type_, rng) for type_ in types]
    neff, _ = compile_module(module.encode(), "test", "test")
    program = HostProgram(neff)
    got = program.run(inputs)
    expected = evaluate_reference(module, inputs, types)
    outputs = [entry for entry in program.signature.values() if entry["type"] == "output"]
    for result, reference, entry in zip(got, expected, outputs, strict=True):
        assert_same(result, reference, entry["dtype"])
    on_device = run_native(neff, program.signature, inputs) if native else expected
    for result, reference, entry in zip(on_device, expected, outputs, strict=True):
        assert_same(result, reference, entry["dtype"])
    return program
