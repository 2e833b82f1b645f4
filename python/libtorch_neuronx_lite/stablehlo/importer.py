# SPDX-License-Identifier: Apache-2.0
"""Imports a prepared FX graph into torch-mlir's torch dialect, in this process, and refuses what it cannot express."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_importer import FxImporter, FxImporterHooks, create_mlir_tensor_type

from .._errors import CompileError, UnsupportedOperatorError
from ..fx_passes.editing import source_line

FUNCTION = "main"


class _Literals(FxImporterHooks):  # type: ignore[misc]
    """Puts the elements of a literal into the module's text, where the key sees them; a resource blob is not there."""

    def resolve_literal(self, gni: Any, literal: Any, info: Any) -> Any:
        if not isinstance(literal, torch.Tensor) or literal.numel() == 0:
            return None
        with unset_fake_temporarily():
            array = literal.detach().cpu().contiguous().numpy()
        dense = create_mlir_tensor_type(literal)
        kind = gni._cc.tensor_to_vtensor_type(literal)
        value = ir.DenseElementsAttr.get(array, type=dense.element_type, shape=list(literal.shape))
        return ir.Operation.create("torch.vtensor.literal", results=[kind], attributes={"value": value}).result


def import_graph(gm: fx.GraphModule) -> bytes:
    """Return MLIR bytecode of a module in the torch dialect whose one function is `main`.

    Raises:
        UnsupportedOperatorError: torch-mlir has no operator of this name in its dialect, or it calls subgraphs.
        CompileError: the importer made an invalid module.
    """
    _refuse_higher_order_operators(gm)
    context = ir.Context()
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context, hooks=_Literals())
    try:
        importer.import_stateless_graph(gm.graph, func_name=FUNCTION)
    except (NotImplementedError, AssertionError, TypeError, ValueError, KeyError) as error:
        raise CompileError(f"torch-mlir's importer does not take this graph: {error}") from error
    module = importer.module
    _refuse_opaque_operators(gm, module)
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise CompileError(f"torch-mlir's importer made an invalid module: {error}") from error
    return _bytecode(module.operation)


def _bytecode(operation: Any) -> bytes:
    import io

    stream = io.BytesIO()
    operation.write_bytecode(stream)
    return stream.getvalue()


def _refuse_opaque_operators(gm: fx.GraphModule, module: Any) -> None:
    for op in module.body.operations[0].regions[0].blocks[0].operations:
        if op.operation.name == "torch.operator":
            name = ir.StringAttr(op.operation.attributes["name"]).value.removeprefix("torch.")
            if name.startswith("_c10d_functional."):  # `collectives` replaces them
                continue
            raise unsupported(gm, name, "torch-mlir has no such operator")


def _refuse_higher_order_operators(gm: fx.GraphModule) -> None:
    for node in gm.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        # `with_effects` wraps an operator that checks or prints on the host: that one is the user's.
        inner = next((arg for arg in node.args if isinstance(arg, torch._ops.OpOverload)), None)
        reason = "it calls subgraphs" if inner is None else "it has side effects on the host, such as checking a result"
        raise _refusal(node, str(inner or node.target), reason)


def find_node(gm: fx.GraphModule, name: str) -> fx.Node | None:
    """Return the first node whose operator is `name` (`aten.foo`, `aten.foo.default` or `aten.foo.overload`)."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            full = str(node.target)
            if full == name or full == f"{name}.default" or full.rpartition(".")[0] == name:
                return node  # type: ignore[no-any-return]
    return None


def unsupported(gm: fx.GraphModule, name: str, reason: str, location: str | None = None) -> UnsupportedOperatorError:
    """Make the error for an operator without a lowering.

    The node's line is looked up in the graph; `location`, as MLIR prints it, stands in for it where torch-mlir has put
    an operator of another name in the node's place.
    """
    node = find_node(gm, name)
    return _refusal(node, str(node.target) if node is not None else name, reason, location)


_PLACE = re.compile(r'"([^"]+)":(\d+)')


def _refusal(node: fx.Node | None, shown: str, reason: str, location: str | None = None) -> UnsupportedOperatorError:
    line = source_line(node) if node is not None else None
    place = _PLACE.search(location or "")
    if line is None and place is not None:
        line = f"{place[1]}:{place[2]}"
    return UnsupportedOperatorError(
        f"operator {shown} cannot be lowered to StableHLO: {reason}.\n  used at {line or 'an unknown line'}\n"
        "Rewrite that line with other operators, or leave it out of the compiled region"
        " (torch.compiler.disable, or a graph break).",
        operator=shown,
        source=line,
    )
