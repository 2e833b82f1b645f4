# SPDX-License-Identifier: Apache-2.0
"""Lets index tensors count from the end, as in eager: StableHLO's gather clamps such an index and scatter drops it."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .editing import Editor, fake_mode_of, fake_value

aten = torch.ops.aten

# The unsafe forms promise indices that are in range and not negative; only the safe ones have a lowering.
_SAFE_FORM: dict[Any, Any] = {
    aten._unsafe_index.Tensor: aten.index.Tensor,
    aten._unsafe_index_put.default: aten.index_put.default,
}
_INDEXED = (aten.index.Tensor, aten.index_put.default)
# Operators that hand on elements of their first argument.
_SAME_ELEMENTS = frozenset({
    aten.view.default, aten.reshape.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.permute.default, aten.slice.Tensor, aten.select.int, aten._to_copy.default,
    aten.clone.default, aten.alias.default,
})  # fmt: skip


def wrap_negative_indices(gm: fx.GraphModule) -> None:
    """Add the dimension's size to negative elements of index tensors that may have some, in place."""
    mode = fake_mode_of(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target in _SAFE_FORM:
            node.target = _SAFE_FORM[node.target]
        elif node.target in _INDEXED:
            editor = Editor(gm.graph, mode, node)
            shape = fake_value(node.args[0]).shape
            node.update_arg(1, _wrapped(gm, editor, shape, node.args[1]))


def _wrapped(gm: fx.GraphModule, editor: Editor, shape: torch.Size, indices: Any) -> list[fx.Node | None]:
    wrapped: list[fx.Node | None] = []
    dim = 0
    for index in indices:
        value = fake_value(index) if index is not None else None
        if value is not None and value.dtype != torch.bool and not _is_never_negative(gm, index):
            is_negative = editor.call(aten.lt.Scalar, index, 0)
            index = editor.call(aten.where.self, is_negative, editor.call(aten.add.Tensor, index, shape[dim]), index)
        dim += value.dim() if value is not None and value.dtype == torch.bool else 1
        wrapped.append(index)
    return wrapped


def _is_never_negative(gm: fx.GraphModule, node: Any) -> bool:
    """Tell whether a node's elements are known to be at least 0, whatever the inputs are."""
    while isinstance(node, fx.Node) and node.target in _SAME_ELEMENTS:
        source: Any = node.args[0]
        if fake_value(node).dtype.is_floating_point or fake_value(source).dtype.is_floating_point:
            return False
        node = source
    if node.op == "get_attr":
        literal = reduce(getattr, str(node.target).split("."), gm)
        with unset_fake_temporarily():
            return isinstance(literal, torch.Tensor) and bool((literal >= 0).all())
    if node.target is aten.arange.default:
        return True
    if node.target in (aten.arange.start, aten.arange.start_step):
        return bool(node.args[0] >= 0 and (len(node.args) < 3 or node.args[2] > 0))
    if node.target is torch.ops.prims.iota.default:
        return bool(node.kwargs["start"] >= 0 and node.kwargs["step"] > 0)
    return node.target is aten.full.default and bool(node.args[1] >= 0)
