# SPDX-License-Identifier: Apache-2.0
"""Jobs that misbehave on purpose. Imported by worker processes only."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

Answer = tuple[dict[str, bytes], dict[str, Any]]
_counter = 0


def echo(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Returns what it got, with this process's id and the modules it has."""
    print("a line on stdout must not land in a frame", flush=True)
    return blobs, {"params": params, "pid": os.getpid(), "modules": sorted(sys.modules), "path": sys.path}


def refuse(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Raises the structured error."""
    from libtorch_neuronx_lite.worker.errors import JobError

    raise JobError("unsupported-op", "cannot do this", op="stablehlo.custom_call", location='"model.py":12:3')


def divide(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Raises an error of Python's own."""
    return {}, {"value": params["a"] / params["b"]}


def abort(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Dies as native code does."""
    print("LLVM ERROR: something native", file=sys.stderr, flush=True)
    os.abort()


def leave(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Ends the process with an exit status."""
    os._exit(3)


def spawn_and_hang(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Starts a child, writes its id to a file and hangs with the GIL held."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    with open(params["file"], "w") as stream:
        stream.write(str(child))
    ctypes.PyDLL(None).sleep(600)
    return {}, {}


def grow(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Takes memory until it is stopped."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)) * 8)


def complex_cast(blobs: dict[str, bytes], params: dict[str, Any]) -> Answer:
    """Runs torch-mlir's StableHLO lowering on `blobs["torch"]`: casting to complex ends in an LLVM fatal error."""
    from torch_mlir import ir, passmanager
    from torch_mlir._mlir_libs import _torchMlir

    context = ir.Context()
    _torchMlir.register_dialect(context)
    with context:
        module = ir.Module.parse(blobs["torch"])
        passmanager.PassManager.parse(
            "builtin.module(torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
            "torch-backend-to-stablehlo-backend-pipeline{allow-non-finites=true})"
        ).run(module.operation)
    return {}, {}
