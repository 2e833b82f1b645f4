# SPDX-License-Identifier: Apache-2.0
"""Collectives as StableHLO: torch-mlir has none, so its opaque operators are replaced. Runs in a worker.

An operator becomes a StableHLO operation between casts to and from builtin tensors before any pass runs; torch-mlir's
conversions leave both alone, and its last pass folds the casts away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

NAMESPACE = "torch._c10d_functional."


def lower_collectives(module: ir.Module) -> None:
    """Replace every collective of the module, in place."""
    found: list[tuple[ir.Operation, str]] = []
    for function in module.body.operations:
        for block in function.regions[0].blocks:
            for view in block.operations:
                op = view.operation
                if op.name != "torch.operator":
                    continue
                name = ir.StringAttr(op.attributes["name"]).value
                if name.startswith(NAMESPACE):
                    found.append((op, name.removeprefix(NAMESPACE).partition(".")[0]))
    if not found:
        return
    # The dialect of the casts has no registration of its own in the bindings; a pass that depends on it loads it.
    PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(ir.Module.create().operation)
    for op, name in found:
        _replace(op, name)


def _replace(op: ir.Operation, name: str) -> None:
    result = op.results[0]
    with ir.InsertionPoint(op), op.location:
        source = op.operands[0]
        inner = ir.Operation.create(
            "torch_c.to_builtin_tensor", results=[_builtin(source.type)], operands=[source]
        ).result
        value = _MAKERS[name](op, inner, _builtin(result.type))
        outer = ir.Operation.create("torch_c.from_builtin_tensor", results=[result.type], operands=[value]).result
    result.replace_all_uses_with(outer)
    op.erase()


def _builtin(kind: ir.Type) -> ir.RankedTensorType:
    """Return the builtin tensor type of a `!torch.vtensor<[2,3],bf16>`; torch's si64, ui8 and the like are signless."""
    body = str(kind).removeprefix("!torch.vtensor<[").removesuffix(">")
    sizes, _, element = body.rpartition("],")
    shape = [int(size) for size in sizes.split(",") if size]
    return ir.RankedTensorType.get(shape, ir.Type.parse(element.removeprefix("s") if element[0] == "s" else element))


def _constant(op: ir.Operation, position: int) -> Any:
    """Return the Python value of an operand that is a torch constant."""
    return op.operands[position].owner.operation.attributes["value"].value


def _groups(op: ir.Operation) -> list[list[int]]:
    text: str = _constant(op, len(op.operands) - 1)
    return [[int(rank) for rank in group.split(",")] for group in text.split(";")]


def _group_attribute(groups: list[list[int]]) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    return ir.DenseIntElementsAttr.get(np.array(groups, np.int64), type=i64)


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _combine(op: ir.Operation, kind: str, element: ir.Type) -> None:
    """Give a reducing operation its body: two scalars combined."""
    scalar = ir.RankedTensorType.get([], element)
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        combined = ir.Operation.create(f"stablehlo.{kind}", results=[scalar], operands=list(block.arguments)).result
        ir.Operation.create("stablehlo.return", operands=[combined])


def _all_reduce(op: ir.Operation, source: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    made = ir.Operation.create(
        "stablehlo.all_reduce",
        results=[kind],
        operands=[source],
        attributes={"replica_groups": _group_attribute(_groups(op))},
        regions=1,
    )
    _combine(made, _constant(op, 1), kind.element_type)
    return made.result


def _reduce_scatter(op: ir.Operation, source: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    made = ir.Operation.create(
        "stablehlo.reduce_scatter",
        results=[kind],
        operands=[source],
        attributes={"replica_groups": _group_attribute(_groups(op)), "scatter_dimension": _i64(0)},
        regions=1,
    )
    _combine(made, _constant(op, 1), kind.element_type)
    return made.result


def _all_gather(op: ir.Operation, source: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    attributes = {"replica_groups": _group_attribute(_groups(op)), "all_gather_dim": _i64(0)}
    return ir.Operation.create("stablehlo.all_gather", results=[kind], operands=[source], attributes=attributes).result


def _all_to_all(op: ir.Operation, source: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    groups = _groups(op)
    attributes = {
        "replica_groups": _group_attribute(groups),
        "split_dimension": _i64(0),
        "concat_dimension": _i64(0),
        "split_count": _i64(len(groups[0])),
    }
    return ir.Operation.create("stablehlo.all_to_all", results=[kind], operands=[source], attributes=attributes).result


def _broadcast(op: ir.Operation, source: ir.Value, kind: ir.RankedTensorType) -> ir.Value:
    root: int = _constant(op, 1)
    # StableHLO's source is the first of a group.
    groups = [[group[root], *group[:root], *group[root + 1 :]] for group in _groups(op)]
    attributes = {"replica_groups": _group_attribute(groups)}
    return ir.Operation.create(
        "stablehlo.collective_broadcast", results=[kind], operands=[source], attributes=attributes
    ).result


_MAKERS: dict[str, Callable[[ir.Operation, ir.Value, ir.RankedTensorType], ir.Value]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
}
