# SPDX-License-Identifier: Apache-2.0
"""Rewrites in Python what torch-mlir's lowering leaves behind: foreign constants, needless dynamism, f64 detours."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_mlir import ir


def clean(module: ir.Module) -> int:
    """Apply every rewrite to the module's functions; return how many operations remain."""
    count = 0
    for function in module.body.operations:
        for region in function.regions:
            for block in region.blocks:
                for op in list(block.operations):
                    rewrite = _REWRITES.get(op.operation.name)
                    if rewrite is not None:
                        rewrite(op.operation)
                _erase_unused(block)
                count += len(block.operations)
    return count


def _replace(op: ir.Operation, name: str, operands: list[ir.Value], attributes: dict[str, ir.Attribute]) -> None:
    new = ir.Operation.create(
        name,
        results=[result.type for result in op.results],
        operands=operands,
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()


def _constant(op: ir.Operation) -> None:
    """arith.constant of a tensor -> stablehlo.constant."""
    if isinstance(op.results[0].type, ir.RankedTensorType):
        _replace(op, "stablehlo.constant", [], {"value": op.attributes["value"]})


def _producer(value: ir.Value) -> ir.Operation | None:
    """Return the operation that makes a value, or None for an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _splat_of(value: ir.Value) -> ir.Attribute | None:
    """Return the element that fills a constant, or None for any other value."""
    owner = _producer(value)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    attribute = owner.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    return attribute.get_splat_value()


def _fold(op: ir.Operation) -> None:
    """A convert or reshape of a constant that one number fills -> that constant; this is where f64 literals end."""
    element = _splat_of(op.operands[0])
    if element is None:
        return
    kind = ir.RankedTensorType(op.results[0].type)
    target = kind.element_type
    number = element.value
    if isinstance(target, ir.IntegerType):
        if isinstance(element, ir.FloatAttr) and (target.width == 1 or not math.isfinite(number)):
            return
        new: ir.Attribute = ir.IntegerAttr.get(target, bool(number) if target.width == 1 else int(number))
    elif isinstance(target, _FLOATS):
        new = ir.FloatAttr.get(target, float(number))
    else:
        return
    _replace(op, "stablehlo.constant", [], {"value": ir.DenseElementsAttr.get_splat(kind, new)})


_FLOATS = (ir.F64Type, ir.F32Type, ir.F16Type, ir.BF16Type)


def _static(op: ir.Operation) -> None:
    """A dynamic form whose result is static -> its static form; the shape operand is read no more."""
    kind = ir.RankedTensorType(op.results[0].type)
    if not kind.has_static_shape:
        return
    if op.name == "stablehlo.dynamic_iota":
        _replace(op, "stablehlo.iota", [], {"iota_dimension": op.attributes["iota_dimension"]})
    elif op.name == "stablehlo.dynamic_reshape":
        _replace(op, "stablehlo.reshape", [op.operands[0]], {})
    else:
        dims = {"broadcast_dimensions": op.attributes["broadcast_dimensions"]}
        _replace(op, "stablehlo.broadcast_in_dim", [op.operands[0]], dims)


def _dot(op: ir.Operation) -> None:
    """dot_general of two operands widened from bf16 or f16 to f32 -> one that reads them narrow and returns f32."""
    left, right = (_widened_from(operand) for operand in op.operands)
    if left is None or right is None or left.type.element_type != right.type.element_type:
        return
    names = ("dot_dimension_numbers", "precision_config", "algorithm")
    attributes = {name: op.attributes[name] for name in names if name in op.attributes}
    _replace(op, "stablehlo.dot_general", [left, right], attributes)


def _widened_from(value: ir.Value) -> ir.Value | None:
    owner = _producer(value)
    if owner is None or owner.name != "stablehlo.convert":
        return None
    source = owner.operands[0]
    if str(source.type.element_type) not in ("bf16", "f16") or str(value.type.element_type) != "f32":
        return None
    return source


def _erase_unused(block: ir.Block) -> None:
    for op in reversed(list(block.operations)):
        operation = op.operation
        is_pure = operation.name.startswith(("stablehlo.", "chlo.", "arith.")) and operation.name not in _EFFECTS
        if is_pure and not any(list(result.uses) for result in operation.results):
            operation.erase()


def _sort(op: ir.Operation) -> None:
    """Every sort is stable: PyTorch's CPU kernels keep the order of equals, and topk is lowered to a sort."""
    op.attributes["is_stable"] = ir.BoolAttr.get(True)


_EFFECTS = frozenset({"stablehlo.return", "stablehlo.custom_call", "stablehlo.send", "stablehlo.recv"})
_REWRITES: dict[str, Callable[[ir.Operation], None]] = {
    "arith.constant": _constant,
    "stablehlo.convert": _fold,
    "stablehlo.reshape": _fold,
    "stablehlo.dynamic_iota": _static,
    "stablehlo.dynamic_reshape": _static,
    "stablehlo.dynamic_broadcast_in_dim": _static,
    "stablehlo.dot_general": _dot,
    "stablehlo.sort": _sort,
}


def find_f64(module: ir.Module) -> ir.Operation | None:
    """Return the first operation that makes a float64 value, which the chip does not have; None when there is none."""
    for function in module.body.operations:
        for op in function.regions[0].blocks[0].operations:
            for result in op.results:
                if isinstance(result.type, ir.ShapedType) and isinstance(result.type.element_type, ir.F64Type):
                    return op.operation
    return None


def find_foreign(module: ir.Module) -> ir.Operation | None:
    """Return the first operation that is neither StableHLO nor CHLO: a compiler would not know it."""
    for function in module.body.operations:
        for op in function.regions[0].blocks[0].operations:
            if not op.operation.name.startswith(("stablehlo.", "chlo.", "func.return")):
                return op.operation
    return None
