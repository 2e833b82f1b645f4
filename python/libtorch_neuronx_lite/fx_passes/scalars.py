# SPDX-License-Identifier: Apache-2.0
"""Gives Python numbers in operators the dtype that eager computes with: no f64, no early rounding to bf16.

Eager on the CPU multiplies a bf16 tensor by the f32 value of a number and rounds once, but adds the number's bf16
value; a lowering that makes every number bf16 first rounds products twice. A comparison with a number takes the
promoted dtype of both, never f64. After this pass binary operators have tensor operands of one dtype, the form with the
plainest lowering.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .editing import Editor, fake_mode_of, fake_value
from .widening import NARROW

aten = torch.ops.aten

# Both operands take the dtype of the result.
_ARITHMETIC: dict[Any, Any] = {
    op: getattr(aten, name).Tensor
    for name in ("add", "sub", "mul", "div", "bitwise_and", "bitwise_or", "bitwise_xor", "fmod", "remainder")
    for op in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
_ARITHMETIC |= {
    aten.bitwise_left_shift.Tensor_Scalar: aten.bitwise_left_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar: aten.bitwise_right_shift.Tensor,
    aten.__lshift__.Tensor: aten.bitwise_left_shift.Tensor,
    aten.__rshift__.Tensor: aten.bitwise_right_shift.Tensor,
    aten.__lshift__.Scalar: aten.bitwise_left_shift.Tensor,
    aten.__rshift__.Scalar: aten.bitwise_right_shift.Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
}
# Both operands take the dtype that they promote to; the result is bool.
_COMPARISONS: dict[Any, Any] = {
    op: getattr(aten, name).Tensor
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for op in (getattr(aten, name).Scalar, getattr(aten, name).Tensor)
}
# Comparisons of a float with itself: True where a number gives True and NaN False, else the other way round.
_OF_ITSELF: dict[Any, bool] = {
    aten.eq.Tensor: True, aten.le.Tensor: True, aten.ge.Tensor: True, aten.ne.Tensor: False,
}  # fmt: skip
_ADDITIVE = (aten.add.Tensor, aten.sub.Tensor)
# Numbers for which torch-mlir has a shorter form.
_POWERS = (0.5, 2, 3)


def make_operands(gm: fx.GraphModule) -> None:
    """Rewrite the binary operators that take a number or mix dtypes, in place."""
    mode = fake_mode_of(gm.graph)
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or len(node.args) < 2:
            continue
        arithmetic, comparison = _ARITHMETIC.get(node.target), _COMPARISONS.get(node.target)
        if arithmetic is None and comparison is None:
            continue
        result = fake_value(node)
        operands = [fake_value(arg) if isinstance(arg, fx.Node) else arg for arg in node.args[:2]]
        if node.target is aten.pow.Tensor_Scalar and operands[1] in _POWERS and operands[0].dtype == result.dtype:
            continue
        editor = Editor(gm.graph, mode, node)
        if comparison in _OF_ITSELF and node.args[0] is node.args[1] and operands[0].dtype.is_floating_point:
            # Only NaN differs from itself; torch-mlir folds the comparison as if nothing did.
            new = editor.call(aten.isnan.default, node.args[0])
            if _OF_ITSELF[comparison]:
                new = editor.call(aten.logical_not.default, new)
        elif comparison is not None:
            dtype = torch.result_type(*(_on_cpu(operand) for operand in operands))
            new = editor.call(comparison, *(_operand(editor, arg, dtype) for arg in node.args[:2]))
        else:
            alpha = node.kwargs.get("alpha", 1)
            is_plain = node.target is arithmetic and alpha == 1
            if is_plain and all(isinstance(o, torch.Tensor) and o.dtype == result.dtype for o in operands):
                continue
            dtype = result.dtype
            numbers = list(node.args[:2])
            if dtype in NARROW:
                if arithmetic in _ADDITIVE:
                    # Eager rounds the number and alpha to the narrow dtype, then adds in f32 and rounds once.
                    numbers = [_rounded(arg, dtype) for arg in numbers]
                    alpha = _rounded(alpha, dtype)
                if alpha != 1 or (
                    not all(_fits(operand, dtype) for operand in operands) and arithmetic not in _ADDITIVE
                ):
                    dtype = torch.float32
            left, right = (_operand(editor, arg, dtype) for arg in numbers)
            if alpha != 1:
                right = editor.call(aten.mul.Tensor, right, _operand(editor, alpha, dtype))
            new = _cast(editor, editor.call(_ARITHMETIC[node.target], left, right), result.dtype)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)


def _on_cpu(operand: Any) -> Any:
    """A stand-in for type promotion, which looks at dtype and rank only."""
    if isinstance(operand, torch.Tensor):
        return torch.empty((1,) * operand.dim(), dtype=operand.dtype, device="cpu")
    return operand


def _fits(operand: Any, dtype: torch.dtype) -> bool:
    if isinstance(operand, torch.Tensor):
        return operand.dtype == dtype
    return bool(torch.tensor(operand, dtype=dtype, device="cpu").item() == operand)


def _rounded(arg: Any, dtype: torch.dtype) -> Any:
    return arg if isinstance(arg, fx.Node) else torch.tensor(arg, dtype=dtype, device="cpu").item()


def _operand(editor: Editor, arg: Any, dtype: torch.dtype) -> fx.Node:
    if isinstance(arg, fx.Node):
        return _cast(editor, arg, dtype)
    number = arg if dtype.is_floating_point or dtype.is_complex else int(arg)
    return editor.call(aten.full.default, [], number, dtype=dtype)


def _cast(editor: Editor, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    if fake_value(node).dtype == dtype:
        return node
    return editor.call(aten._to_copy.default, node, dtype=dtype)
