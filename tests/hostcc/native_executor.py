# SPDX-License-Identifier: Apache-2.0
"""Runs a host NEFF on `neuron:0`: the C++ reader, loader and kernels, on arrays in storage form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from libtorch_neuronx_lite import _C

Array = np.ndarray[Any, Any]

_TORCH = {
    "bool": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16,
    "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64, "u64": torch.uint64, "bf16": torch.bfloat16,
    "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip


def run_native(neff: bytes, signature: dict[str, Any], inputs: list[Array]) -> list[Array]:
    """Execute and return every output in storage form; an aliased one is read from its input."""
    inputs_of = [entry for entry in signature.values() if entry["type"] == "input"]
    outputs_of = [entry for entry in signature.values() if entry["type"] == "output"]
    executable = _C.Executable.load(neff, 0)
    arguments = []
    for array, entry in zip(inputs, inputs_of, strict=True):
        data = torch.frombuffer(bytearray(np.ascontiguousarray(array).tobytes() or b"\0"), dtype=torch.uint8)
        host = data[: entry["size"]].view(_TORCH[entry["dtype"]]).reshape(entry["shape"])
        arguments.append(host.to("neuron:0"))
    plan = [("input", int(e["alias"][5:])) if "alias" in e else ("output", k) for k, e in enumerate(outputs_of)]
    results = _C.GraphCall(executable, list(range(len(arguments))), plan)(arguments)
    arrays = []
    for result, entry in zip(results, outputs_of, strict=True):
        raw = result.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        arrays.append(raw.view(_storage(entry["dtype"])).reshape(entry["shape"]))
    return arrays


def _storage(dtype: str) -> Any:
    from libtorch_neuronx_lite.hostcc.dtypes import STORAGE

    return STORAGE[dtype]
