# SPDX-License-Identifier: Apache-2.0
"""A planned program as the files of a host NEFF: signature, program and constants (docs/host-program.md)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.graph import Graph, TensorType
from libtorch_neuronx_lite.hostcc.planner import Plan
from libtorch_neuronx_lite.hostcc.windows import Storage, Window, canonical_strides

PROGRAM_VERSION = 1


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def signature(graph: Graph) -> bytes:
    """Return `sg00/def.json`."""

    def variable(kind: str, index: int, type_: TensorType) -> dict[str, Any]:
        return {
            "type": kind,
            "var_id": index,
            "size": type_.bytes,
            "dtype": type_.dtype,
            "shape": list(type_.shape),
        }

    variables = {f"input{i}": variable("input", i, graph.types[value]) for i, value in enumerate(graph.inputs)}
    for index, value in enumerate(graph.outputs):
        entry = variable("output", index, graph.types[value])
        if index in graph.aliases:
            entry["alias"] = f"input{graph.aliases[index]}"
        variables[f"output{index}"] = entry
    return _dump({"version": 1, "target": "host", "var": variables})


def program(graph: Graph, plan: Plan) -> bytes:
    """Return `sg00/program.json`."""
    buffers: list[dict[str, Any]] = []
    buffer_of: dict[int, int] = {}
    values: list[dict[str, Any]] = []
    value_of: dict[tuple[Any, ...], int] = {}

    def buffer(storage: Storage) -> int:
        found = buffer_of.get(id(storage))
        if found is None:
            found = buffer_of[id(storage)] = len(buffers)
            entry: dict[str, Any] = {"kind": storage.kind}
            if storage.kind in ("input", "output"):
                entry["index"] = storage.index
            else:
                entry["offset"] = storage.offset
            entry["bytes"] = storage.bytes
            buffers.append(entry)
        return found

    def value(window: Window) -> int:
        number = buffer(window.storage.resolve())
        strides = canonical_strides(window.shape, window.strides)
        key = (number, window.dtype, window.shape, strides, window.offset)
        found = value_of.get(key)
        if found is None:
            found = value_of[key] = len(values)
            values.append(
                {
                    "buffer": number,
                    "dtype": window.dtype,
                    "shape": list(window.shape),
                    "strides": list(strides),
                    "offset": window.offset,
                }
            )
        return found

    steps = [
        {
            "op": step.op,
            "in": [value(window) for window in step.inputs],
            "out": [value(window) for window in step.outputs],
            "attrs": step.attributes,
        }
        for step in plan.steps
    ]
    return _dump(
        {
            "version": PROGRAM_VERSION,
            "arena_bytes": plan.arena_bytes,
            "buffers": buffers,
            "values": values,
            "steps": steps,
        }
    )


def constants(plan: Plan) -> bytes:
    """Return `sg00/constants.bin`."""
    data = bytearray(plan.constant_bytes)
    for storage in plan.constants:
        assert storage.data is not None
        data[storage.offset : storage.offset + storage.bytes] = np.ascontiguousarray(storage.data).tobytes()
    return bytes(data)
