# SPDX-License-Identifier: Apache-2.0
"""A PyTorch function as a host NEFF without torch.compile: traced, imported by torch-mlir, compiled in process."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from host_program_oracle import HostProgram
from native_executor import _TORCH, run_native
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from libtorch_neuronx_lite.hostcc.compiler import compile_module
from libtorch_neuronx_lite.hostcc.dtypes import STORAGE


def compile_function(function: Callable[..., Any], arguments: list[torch.Tensor]) -> tuple[bytes, HostProgram]:
    """Return the NEFF of `function`, which takes and returns tensors, and the same opened."""
    from torch_mlir.compiler_utils import OutputType
    from torch_mlir.fx import stateless_fx_import

    graph = make_fx(function, decomposition_table=core_aten_decompositions())(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the importer's own deprecations
        module = stateless_fx_import(graph, output_type=OutputType.STABLEHLO)
        stream = io.BytesIO()
        module.operation.write_bytecode(stream)
    neff, _ = compile_module(stream.getvalue(), "graph", "test")
    return neff, HostProgram(neff)


def run_function(neff: bytes, program: HostProgram, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the NEFF on `neuron:0`."""
    names = {dtype: name for name, dtype in _TORCH.items()}
    arrays = [
        tensor.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .numpy()
        .view(STORAGE[names[tensor.dtype]])
        .reshape(tensor.shape)
        if tensor.numel()
        else tensor.to(torch.uint8).numpy().astype(STORAGE[names[tensor.dtype]])
        for tensor in arguments
    ]
    outputs = [entry for entry in program.signature.values() if entry["type"] == "output"]
    return [
        torch.frombuffer(bytearray(array.tobytes()), dtype=_TORCH[entry["dtype"]]).reshape(entry["shape"])
        for array, entry in zip(run_native(neff, program.signature, arrays), outputs, strict=True)
    ]
