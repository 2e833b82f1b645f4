# SPDX-License-Identifier: Apache-2.0
"""The compile job: StableHLO bytes to NEFF bytes. Runs in a worker: imports torch_mlir and numpy, never torch."""

from __future__ import annotations

import json
import time
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

# Importing the tables registers their handlers.
from libtorch_neuronx_lite.hostcc import (
    lower_attention,
    lower_collectives,
    lower_compute,
    lower_dot,
    lower_layout,
    program,
)
from libtorch_neuronx_lite.hostcc.fusion import fuse_elementwise
from libtorch_neuronx_lite.hostcc.lowering import HANDLERS, Lowering
from libtorch_neuronx_lite.hostcc.neff import write_neff
from libtorch_neuronx_lite.hostcc.planner import plan
from libtorch_neuronx_lite.hostcc.reader import (
    canonicalize,
    is_portable_artifact,
    legalize_chlo,
    new_context,
    parse_module,
    read_graph,
)
from libtorch_neuronx_lite.hostcc.simplify import simplify

__all__ = [
    "compile",
    "compile_module",
    "lower_attention",
    "lower_collectives",
    "lower_compute",
    "lower_dot",
    "lower_layout",
]


def compile(blobs: dict[str, bytes], params: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Compile ``blobs["module"]`` to ``neff``.

    Args:
        blobs: ``module``: MLIR bytecode, a portable artifact, or text.
        params: ``name``: the graph's name; ``compiler``: the version string that goes into the NEFF.

    Returns:
        ``{"neff": bytes}`` and counts for the log: steps, arena_bytes, constant_bytes, seconds.
    """
    started = time.perf_counter()
    neff, info = compile_module(blobs["module"], params["name"], params["compiler"])
    return {"neff": neff}, {**info, "seconds": time.perf_counter() - started}


def compile_module(data: bytes, name: str, compiler: str) -> tuple[bytes, dict[str, Any]]:
    """Return the NEFF for a module and counts for the log; raise JobError for what cannot be compiled."""
    context = new_context()
    module = parse_module(context, data)
    canonicalize(module)
    graph = read_graph(module, name)
    if any(op.name.startswith("chlo.") and op.name not in HANDLERS for op in graph.ops):
        legalize_chlo(module)
        graph = read_graph(module, name)
    simplify(graph)
    low = Lowering(graph)
    low.run()
    fuse_elementwise(low)
    planned = plan(low)
    files = {
        "neff.json": json.dumps(
            {"version": 1, "target": "host", "compiler": f"hostcc {compiler}", "name": name}
        ).encode(),
        "sg00/def.json": program.signature(graph),
        "sg00/program.json": program.program(graph, planned),
        "sg00/constants.bin": program.constants(planned),
        "sg00/module.stablehlo": _artifact(context, data),
    }
    info = {
        "steps": len(planned.steps),
        "arena_bytes": planned.arena_bytes,
        "constant_bytes": planned.constant_bytes,
    }
    return write_neff(name, files, build_version=f"hostcc {compiler}"), info


def _artifact(context: ir.Context, data: bytes) -> bytes:
    """Return the portable artifact; other dialects' constants (arith, dense_resource) are allowed in it."""
    if is_portable_artifact(data):
        return data
    # Serialising rewrites the module, so it gets one of its own.
    return bytes(
        _stablehlo.serialize_portable_artifact(parse_module(context, data), _stablehlo.get_current_version(), True)
    )
