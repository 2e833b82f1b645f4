# SPDX-License-Identifier: Apache-2.0
"""Gives tensors without dimensions one before a reduction or a scan: on some, torch-mlir's passes do not end."""

from __future__ import annotations

import operator

import torch
from torch import fx

from .editing import Editor, fake_mode_of, fake_value

aten = torch.ops.aten

_ALONG_A_DIMENSION = frozenset({
    aten.sum.dim_IntList, aten.prod.dim_int, aten.amax.default, aten.amin.default, aten.argmax.default,
    aten.argmin.default, aten.any.dim, aten.all.dim, aten.max.dim, aten.min.dim, aten._softmax.default,
    aten._log_softmax.default, aten.cumsum.default, aten.sort.default, aten.topk.default,
})  # fmt: skip


def give_scalars_a_dimension(gm: fx.GraphModule) -> None:
    """Rewrite such operators on scalars to work on one dimension of one element, in place."""
    mode = fake_mode_of(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target not in _ALONG_A_DIMENSION or fake_value(node.args[0]).dim() != 0:
            continue
        editor = Editor(gm.graph, mode, node)
        line = editor.call(aten.view.default, node.args[0], [1])
        new = editor.call(node.target, line, *node.args[1:], **node.kwargs)
        if isinstance(fake_value(new), torch.Tensor):
            node.replace_all_uses_with(editor.call(aten.view.default, new, []))
            continue
        for user in list(node.users):
            part = editor.call(operator.getitem, new, user.args[1])
            user.replace_all_uses_with(editor.call(aten.view.default, part, []))
