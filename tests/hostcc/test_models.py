# SPDX-License-Identifier: Apache-2.0
"""A decoder with a static cache, from torch-mlir's StableHLO to the device, against eager."""

from __future__ import annotations

import json

import pytest
import small_llama
import torch
from host_program_oracle import HostProgram

from libtorch_neuronx_lite import _C, hostcc


def _compile(shape: small_llama.Shape, arguments: list[torch.Tensor]) -> tuple[bytes, HostProgram]:
    neff = hostcc.compile_stablehlo(small_llama.stablehlo(shape, arguments), name="llama", timeout=120)
    return neff, HostProgram(neff)


def _call(neff: bytes, program: HostProgram, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = [entry for entry in program.signature.values() if entry["type"] == "output"]
    plan = [("input", int(e["alias"][5:])) if "alias" in e else ("output", k) for k, e in enumerate(outputs)]
    call = _C.GraphCall(_C.Executable.load(neff, 0), list(range(len(arguments))), plan)
    results: list[torch.Tensor] = list(call(arguments))
    return results


# bf16: eager rounds where the program rounds; the order of sums differs and may move a value by a few steps.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)])
def test_prefill_then_decode(dtype: torch.dtype, tolerance: float) -> None:
    prefill, decode = small_llama.Shape(tokens=5), small_llama.Shape(tokens=1)
    weights, caches = small_llama.parameters(prefill, dtype), small_llama.caches(prefill, dtype)
    on_device = [tensor.to("neuron:0") for tensor in caches]
    addresses = [tensor.data_ptr() for tensor in on_device]
    device_weights = [tensor.to("neuron:0") for tensor in weights]
    start = 0
    for shape in (prefill, decode, decode):
        ids = torch.randint(0, shape.vocabulary, (1, shape.tokens))
        positions = torch.arange(shape.tokens) + start
        arguments = [ids, positions, *caches, *weights]
        neff, program = _compile(shape, arguments)
        logits, _, *caches = small_llama.forward(shape, *arguments)
        got = _call(neff, program, [ids.to("neuron:0"), positions.to("neuron:0"), *on_device, *device_weights])
        torch.testing.assert_close(got[0].cpu(), logits, rtol=tolerance, atol=tolerance)
        assert got[1].item() == got[0].argmax(-1).item()
        for cache, expected in zip(on_device, caches, strict=True):
            torch.testing.assert_close(cache.cpu(), expected, rtol=tolerance, atol=tolerance)
        caches = [cache.cpu() for cache in on_device]  # both continue from one state
        start += shape.tokens
    assert [tensor.data_ptr() for tensor in on_device] == addresses


def test_the_program_of_a_decode_step() -> None:
    shape = small_llama.Shape(tokens=1, layers=3)
    arguments = small_llama.arguments(shape, torch.bfloat16)
    _, program = _compile(shape, arguments)
    cache_bytes = arguments[2].numel() * 2
    ops = program.ops()
    assert ops.count("scatter") == 2 * shape.layers
    assert program.copied_bytes() < cache_bytes  # neither a cache nor its repeated heads are ever copied
    assert program.program["arena_bytes"] < 4096
    text = json.dumps(program.program)
    assert '"f64"' not in text
    products = [step for step in program.program["steps"] if step["op"] == "dot_general"]
    values = program.program["values"]
    assert all(0 not in values[index]["strides"] for step in products for index in step["in"])  # heads are read once


def test_the_fused_products_keep_bf16_operands() -> None:
    shape = small_llama.Shape(tokens=1, layers=1)
    _, program = _compile(shape, small_llama.arguments(shape, torch.bfloat16))
    values = program.program["values"]
    for step in program.program["steps"]:
        if step["op"] == "dot_general":
            assert {values[index]["dtype"] for index in step["in"]} == {"bf16"}
