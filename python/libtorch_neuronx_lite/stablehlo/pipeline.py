# SPDX-License-Identifier: Apache-2.0
"""The MLIR passes from torch-mlir's torch dialect to StableHLO. Runs in a worker: imports MLIR bindings only."""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

from ..worker.errors import JobError
from .cleanup import clean, find_f64, find_foreign
from .collectives import lower_collectives

_TO_TORCH_BACKEND = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),"
    "torchdynamo-export-to-torch-backend-pipeline{extra-library=})"
)
_TO_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline{allow-non-finites=true})"
_SIMPLIFY = "builtin.module(func.func(stablehlo-aggressive-simplification),canonicalize,cse)"


def lower(blobs: dict[str, bytes], params: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Lower `blobs["torch"]` (bytecode) to `stablehlo` (bytecode).

    Args:
        blobs: `torch`: a module in the torch dialect with one function, `main`.
        params: `aliases`: list of [output index, input index]; `name`: the module's symbol; `replicas`: how many
            processes its collectives join, 0 without collectives.

    Returns:
        `stablehlo`: a module of StableHLO, CHLO and func operations; argument i of `main` carries
        `tf.aliasing_output = k` where output k is that argument's memory. The second value holds
        `operations`, their count, and `digest`, of the text without locations.
    """
    context = ir.Context()
    torch_dialect.register_dialect(context)
    _stablehlo.register_dialect(context)
    _stablehlo.register_stablehlo_passes()
    with context, ir.Location.unknown():
        module = ir.Module.parse(blobs["torch"])
        lower_collectives(module)
        _run(context, module, _TO_TORCH_BACKEND)
        _run(context, module, _TO_STABLEHLO)
        clean(module)
        _run(context, module, _SIMPLIFY)
        count = clean(module)
        wide = find_f64(module)
        if wide is not None:
            raise JobError(
                "float64",
                "the lowering goes through float64, which the neuron device does not have",
                op=wide.name,
                location=str(wide.location),
            )
        foreign = find_foreign(module)
        if foreign is not None:
            raise JobError(
                "lowering", "the lowering left an operation that is not StableHLO",
                op=foreign.name, location=str(foreign.location),
            )  # fmt: skip
        _mark_aliases(module, params["aliases"])
        if params["replicas"]:
            i32 = ir.IntegerType.get_signless(32)
            module.operation.attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(i32, params["replicas"])
        module.operation.attributes["sym_name"] = ir.StringAttr.get(params["name"])
        module.operation.verify()
        digest = hashlib.sha256(str(module).encode()).hexdigest()
        stream = io.BytesIO()
        module.operation.write_bytecode(stream)
    return {"stablehlo": stream.getvalue()}, {"operations": count, "digest": digest}


def _run(context: ir.Context, module: ir.Module, passes: str) -> None:
    """Run a pipeline; raise JobError with what the passes said, and where, when it fails."""
    said: list[tuple[str, str]] = []

    def listen(diagnostic: ir.Diagnostic) -> bool:
        if diagnostic.severity == ir.DiagnosticSeverity.ERROR:
            said.append((diagnostic.message, str(diagnostic.location)))
        return True

    # A pass may report an error and not fail: with a handler of our own that does not end in MLIR's assertion.
    context.emit_error_diagnostics = True
    handler = context.attach_diagnostic_handler(listen)
    try:
        PassManager.parse(passes).run(module.operation)
    except ir.MLIRError:
        message, location = said[0] if said else ("a pass failed and gave no reason", None)
        # A conversion that fails names the operator; what fails after it has only the operator's constants to name.
        named = _ILLEGAL.search(message)
        name = named.group(1) if named else None
        if name is not None and name.startswith(_FEEDERS):
            left = _first_torch_op(module)
            name, location = (left.name, str(left.location)) if left is not None else (None, location)
        if name is not None and name.startswith("torch."):
            name = name.removeprefix("torch.")
            raise JobError(
                "unsupported-op", f"{name} has no lowering to StableHLO", op=name, location=location
            ) from None
        raise JobError("lowering", message, location=location) from None
    finally:
        handler.detach()


def _first_torch_op(module: ir.Module) -> ir.Operation | None:
    """Return the first operator that no conversion took; what feeds it (constants, lists) is not one."""
    for function in module.body.operations:
        for op in function.regions[0].blocks[0].operations:
            name = op.operation.name
            if name.startswith("torch.") and not name.startswith(_FEEDERS):
                return op.operation
    return None


_ILLEGAL = re.compile(r"failed to legalize operation '([\w.]+)'")
_FEEDERS = ("torch.constant.", "torch.prim.List", "torch.prim.Tuple", "torch.vtensor.literal", "torch.runtime.assert")


def _mark_aliases(module: ir.Module, aliases: list[list[int]]) -> None:
    function = module.body.operations[0]
    arguments = len(function.regions[0].blocks[0].arguments)
    output_of = {argument: output for output, argument in aliases}
    i32 = ir.IntegerType.get_signless(32)
    attributes = [
        ir.DictAttr.get({"tf.aliasing_output": ir.IntegerAttr.get(i32, output_of[i])} if i in output_of else {})
        for i in range(arguments)
    ]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
