# SPDX-License-Identifier: Apache-2.0
"""Brings functional collectives into the few forms that `stablehlo` lowers, with replica groups in place of names.

A graph names a process group by a string that means something to its own process only. Here the group becomes text
such as "0,1;2,3": every group of the world that does the same collective, in the order of its ranks. Ranks of one SPMD
model then lower to one program, and the groups are part of its key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from .._errors import CompileError
from .editing import Editor, fake_mode_of, fake_value, source_line

aten = torch.ops.aten

Groups = tuple[tuple[int, ...], ...]

_NAMESPACE = "_c10d_functional"
# What c10d calls a reduction -> what it is called from here on; "avg" is a sum that is divided.
_REDUCTIONS = {
    "sum": "add",
    "avg": "add",
    "product": "multiply",
    "max": "maximum",
    "min": "minimum",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}


@dataclass(frozen=True)
class World:
    """The processes that a graph with collectives runs in.

    Attributes:
        rank: this process.
        size: how many there are.
    """

    rank: int
    size: int


def world_of(gm: fx.GraphModule) -> World | None:
    """Return the world whose collectives the graph joins, None for a graph without collectives."""
    if all(node.target._opname == "wait_tensor" for node in _collectives(gm)):
        return None
    return World(dist.get_rank(), dist.get_world_size())


def take_collectives(gm: fx.GraphModule) -> World | None:
    """Rewrite every collective of the graph, in place; return what `world_of` said before.

    Raises:
        CompileError: a collective without a form in the executable: unequal splits, or an unknown reduction.
    """
    world = world_of(gm)
    for node in _collectives(gm):
        rewrite = _REWRITES.get(node.target._opname)
        if rewrite is None:
            raise _refusal(node, "this collective has no form in an executable")
        rewrite(gm, node)
    return world


def _collectives(gm: fx.GraphModule) -> list[Any]:
    return [
        node
        for node in gm.graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == _NAMESPACE
    ]


def replica_groups(ranks: Sequence[int], world: int) -> Groups:
    """Return every group that does what the group of `ranks` does, among them this one.

    The groups of a device mesh lie at one distance from each other, so one of them tells the rest; a group that is part
    of no such division of the world stands alone, and its program is its own.

    Args:
        ranks: global ranks of the group, in its order.
        world: the number of ranks.
    """
    size = len(ranks)
    step = ranks[1] - ranks[0] if size > 1 else 1
    block = size * step
    regular = step > 0 and world % block == 0 and ranks[0] // step % size == 0
    if not regular or any(rank != ranks[0] + i * step for i, rank in enumerate(ranks)):
        return (tuple(ranks),)
    starts = [first + offset for first in range(0, world, block) for offset in range(step)]
    return tuple(tuple(start + i * step for i in range(size)) for start in starts)


def groups_text(groups: Groups) -> str:
    """Return the groups as the text that travels through the importer."""
    return ";".join(",".join(str(rank) for rank in group) for group in groups)


def _args(node: fx.Node) -> Any:
    """Return the arguments of a node, of whatever types its operator takes."""
    return node.args


def _groups_of(node: fx.Node) -> Groups:
    group = _args(node)[-1]
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined, arg-type]
    if not isinstance(group, dist.ProcessGroup):
        raise _refusal(node, f"its group is known only when it runs ({group})")
    return replica_groups(dist.get_process_group_ranks(group), dist.get_world_size())


def _refusal(node: fx.Node, reason: str) -> CompileError:
    return CompileError(
        f"collective {node.target} cannot be compiled: {reason}.\n  used at {source_line(node) or 'an unknown line'}"
    )


def _editor(gm: fx.GraphModule, node: fx.Node) -> Editor:
    return Editor(gm.graph, fake_mode_of(gm.graph), node)


def _replace(gm: fx.GraphModule, node: fx.Node, value: fx.Node) -> None:
    node.replace_all_uses_with(value)
    gm.graph.erase_node(node)


def _collective(editor: Editor, name: str, source: fx.Node, like: Any, groups: Groups, *middle: Any) -> fx.Node:
    """Insert `name(source, *middle, groups)`, whose value is like `like`; a group of one rank needs only a copy."""
    if len(groups[0]) == 1:
        return editor.call(aten.clone.default, source)
    overload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return editor.node(overload, (source, *middle, groups_text(groups)), like)


def _reduction(node: fx.Node, name: Any, value: torch.Tensor) -> str:
    kind = _REDUCTIONS.get(str(name).lower())
    if kind is None:
        raise _refusal(node, f"the reduction '{name}' is none of {', '.join(_REDUCTIONS)}")
    if name == "avg" and not value.is_floating_point():
        raise _refusal(node, f"'avg' of {value.dtype} has no exact result; use 'sum'")
    if value.dtype == torch.bool and kind in ("add", "multiply"):
        raise _refusal(node, f"'{name}' of {value.dtype}; use 'max', 'min', 'band' or 'bor'")
    return kind


def _reduced(gm: fx.GraphModule, node: fx.Node, source: fx.Node, like: torch.Tensor, name: str) -> fx.Node:
    """Insert an all_reduce or reduce_scatter of one tensor, and the division of an average."""
    groups = _groups_of(node)
    editor = _editor(gm, node)
    reduction = _args(node)[1]
    kind = _reduction(node, reduction, like)
    middle = (kind,) if name == "all_reduce" else (kind, len(groups[0]))
    result = _collective(editor, name, source, like, groups, *middle)
    if reduction == "avg" and len(groups[0]) > 1:
        result = editor.call(aten.div.Tensor, result, len(groups[0]))
    return result


def _all_reduce(gm: fx.GraphModule, node: fx.Node) -> None:
    _replace(gm, node, _reduced(gm, node, _args(node)[0], fake_value(node), "all_reduce"))


def _reduce_scatter(gm: fx.GraphModule, node: fx.Node) -> None:
    _replace(gm, node, _reduced(gm, node, _args(node)[0], fake_value(node), "reduce_scatter_tensor"))


def _gathered(gm: fx.GraphModule, node: fx.Node, source: fx.Node, like: torch.Tensor) -> fx.Node:
    groups = _groups_of(node)
    return _collective(_editor(gm, node), "all_gather_into_tensor", source, like, groups, len(groups[0]))


def _all_gather(gm: fx.GraphModule, node: fx.Node) -> None:
    _replace(gm, node, _gathered(gm, node, _args(node)[0], fake_value(node)))


def _each(one: Callable[[fx.GraphModule, fx.Node, fx.Node, torch.Tensor], fx.Node]) -> Callable[..., None]:
    """Return the rewrite of a coalesced collective: one for each tensor of its list."""

    def rewrite(gm: fx.GraphModule, node: fx.Node) -> None:
        results = [one(gm, node, source, like) for source, like in zip(_args(node)[0], fake_value(node), strict=True)]
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise _refusal(node, "its list of results is used as a whole")
            _replace(gm, user, results[_args(user)[1]])
        gm.graph.erase_node(node)

    return rewrite


def _all_to_all(gm: fx.GraphModule, node: fx.Node) -> None:
    source, output_splits, input_splits, _ = _args(node)
    groups = _groups_of(node)
    value = fake_value(source)
    size = len(groups[0])
    equal = value.shape[0] // size if value.shape[0] % size == 0 else -1
    splits = {*output_splits, *input_splits}
    if splits and splits != {equal}:
        raise _refusal(
            node,
            f"splits {list(input_splits)} to {list(output_splits)} are not equal, so ranks would differ in shape; pad"
            f" each piece to one size ({size} pieces, as expert parallelism with a fixed capacity does)",
        )
    result = _collective(_editor(gm, node), "all_to_all_single", source, fake_value(node), groups, [], [])
    _replace(gm, node, result)


def _broadcast(gm: fx.GraphModule, node: fx.Node) -> None:
    source, root, _ = _args(node)
    groups = _groups_of(node)
    result = _collective(_editor(gm, node), "broadcast", source, fake_value(node), groups, root)
    _replace(gm, node, result)


def _wait(gm: fx.GraphModule, node: fx.Node) -> None:
    """A step of the program is done when the next one runs."""
    _replace(gm, node, _args(node)[0])


_REWRITES: dict[str, Callable[[fx.GraphModule, fx.Node], None]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _each(lambda gm, node, source, like: _reduced(gm, node, source, like, "all_reduce")),
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_coalesced": _each(_gathered),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _each(
        lambda gm, node, source, like: _reduced(gm, node, source, like, "reduce_scatter_tensor")
    ),
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "wait_tensor": _wait,
}
