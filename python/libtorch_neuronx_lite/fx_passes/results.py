# SPDX-License-Identifier: Apache-2.0
"""Decides where each result of a graph comes from: an output of the executable, an argument, or a plain value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .._errors import CompileError
from .editing import Editor, fake_mode_of, fake_value
from .mutation import Mutations

aten = torch.ops.aten


@dataclass(frozen=True)
class Layout:
    """A result that is a window on a tensor: on argument `base`, or on the executable's own output (`base` None).

    `offset` counts elements from the base tensor's own first element.
    """

    base: int | None
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class EmptyResult:
    """A result without elements: no executable makes it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_on_cpu: bool


@dataclass
class Results:
    """How the results of one call are put together.

    Attributes:
        outputs: the nodes that the executable computes, in its output order.
        aliases: output index -> argument index that the output's memory is.
        plan: for each result ("output", k), ("input", argument index) or ("none", 0).
        values: result position -> a plain Python value (a number) that the graph returns.
        layouts: result position -> the window that the result is.
        empties: result position -> the tensor without elements that the result is.
        on_cpu: result positions whose tensor belongs on the CPU.
    """

    outputs: list[fx.Node] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    plan: list[tuple[str, int]] = field(default_factory=list)
    values: dict[int, Any] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    empties: dict[int, EmptyResult] = field(default_factory=dict)
    on_cpu: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class AliasInfo:
    """What AOTAutograd knows about one result: `kind` is the name of its OutputType, `base` the argument's index."""

    kind: str
    base: int | None


def alias_info(result_count: int, argument_count: int) -> list[AliasInfo] | None:
    """Read AOTAutograd's view of the results from the tracing context; None outside a trace.

    Only it knows whether a result that holds an argument's new value is that argument or a separate tensor.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if metadata is None:
        return None
    outside = len(metadata.mutated_inp_runtime_indices)
    infos = [AliasInfo("non_alias", None)] * outside
    infos += [AliasInfo(info.output_type.name, info.base_idx) for info in metadata.output_info]
    infos += [AliasInfo("non_alias", None)] * metadata.num_intermediate_bases
    # Tokens of side effects or merged arguments (synthetic bases) shift the positions: then nothing is known.
    if len(infos) != result_count or len(metadata.input_info) != argument_count:
        return None
    return infos


def plan_results(gm: fx.GraphModule, mutations: Mutations, infos: Sequence[AliasInfo] | None) -> Results:
    """Rewrite the graph's output node into the executable's outputs and return how results are made from them."""
    graph = gm.graph
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    index_of = {node: i for i, node in enumerate(placeholders)}
    returned = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    results = Results()
    position_of: dict[fx.Node, int] = {}

    for argument, value in mutations.values.items():
        results.aliases[len(results.outputs)] = index_of[argument]
        results.outputs.append(value)

    def emit(node: fx.Node) -> int:
        if node not in position_of:
            position_of[node] = len(results.outputs)
            results.outputs.append(node)
        return position_of[node]

    owners = _storage_owners(graph)
    for position, node in enumerate(returned):
        if node is None:
            results.plan.append(("none", 0))
            continue
        value = fake_value(node) if isinstance(node, fx.Node) else node
        if value is None or not isinstance(value, torch.Tensor):
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise CompileError(f"result {position} of the graph is the symbolic number {value}, not a concrete one")
            results.values[position] = value
            results.plan.append(("none", 0))
            continue
        info = infos[position] if infos is not None else None
        base = _argument_behind(node, info, mutations, placeholders)
        if base is None and value.numel() == 0:
            results.empties[position] = EmptyResult(
                tuple(value.shape), tuple(value.stride()), value.dtype, value.device.type == "cpu"
            )
            results.plan.append(("none", 0))
            continue
        node = mutations_value(node, mutations)
        owner = owners.get(_storage(value)) if base is None else None
        if owner is not None and _is_window(node, owner, returned):
            results.layouts[position] = Layout(
                None, tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
            )
            results.plan.append(("output", emit(owner)))
            if value.device.type == "cpu":
                results.on_cpu.add(position)
            continue
        if base is not None:
            fake_base = fake_value(placeholders[base])
            if _same_window(value, fake_base):
                results.plan.append(("input", base))
            else:
                results.layouts[position] = Layout(
                    base,
                    tuple(value.shape),
                    tuple(value.stride()),
                    value.storage_offset() - fake_base.storage_offset(),
                )
                results.plan.append(("input", base))
            continue
        if not value.is_contiguous() and _is_dense_permutation(value):
            order = sorted(range(value.dim()), key=lambda d: (value.stride(d), value.shape[d]), reverse=True)
            node = Editor(graph, fake_mode_of(graph), output).call(aten.permute.default, node, order)
            results.layouts[position] = Layout(None, tuple(value.shape), tuple(value.stride()), 0)
        if value.device.type == "cpu":
            results.on_cpu.add(position)
        results.plan.append(("output", emit(node)))

    output.args = (tuple(results.outputs),)
    for written in reversed(list(mutations.written)):
        graph.erase_node(written)
    return results


def mutations_value(node: fx.Node, mutations: Mutations) -> fx.Node:
    """Return the value node that a returned `copy_` stands for; any other node is itself."""
    if node in mutations.written:
        return mutations.values[mutations.written[node]]
    return node


def _argument_behind(
    node: fx.Node, info: AliasInfo | None, mutations: Mutations, placeholders: list[fx.Node]
) -> int | None:
    """Return the index of the argument whose memory the result is, or None for a tensor of its own."""
    if info is not None:
        return info.base if info.kind in ("is_input", "alias_of_input") else None
    argument = mutations.written.get(node, node)
    return placeholders.index(argument) if argument.op == "placeholder" else None


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata  # type: ignore[no-any-return]


def _storage_owners(graph: fx.Graph) -> dict[int, fx.Node]:
    """Return, for each storage, the node that made it, where that is a contiguous tensor that fills it.

    Eager results that are views of one tensor share its memory; AOTAutograd keeps track of that only where gradients
    need it, so it is read from the fake storages here.
    """
    owners: dict[int, fx.Node] = {}
    seen: set[int] = set()
    for node in graph.nodes:
        value = fake_value(node)
        if not isinstance(value, torch.Tensor) or node.op == "output":
            continue
        key = _storage(value)
        fills = value.is_contiguous() and value.numel() * value.element_size() == value.untyped_storage().nbytes()
        if key not in seen and node.op == "call_function" and fills and value.storage_offset() == 0:
            owners[key] = node
        seen.add(key)
    return owners


def _is_window(node: fx.Node, owner: fx.Node, returned: Sequence[Any]) -> bool:
    """Tell whether a result is given out as a window on `owner`: it is returned too, or has the same elements."""
    value, whole = fake_value(node), fake_value(owner)
    if owner is node or value.dtype != whole.dtype:
        return False
    return owner in returned or (value.numel() == whole.numel() and not value.is_contiguous())


def _same_window(value: torch.Tensor, base: torch.Tensor) -> bool:
    return (
        value.dtype == base.dtype
        and value.shape == base.shape
        and value.stride() == base.stride()
        and value.storage_offset() == base.storage_offset()
    )


def _is_dense_permutation(value: torch.Tensor) -> bool:
    """Tell whether the strides are those of a contiguous tensor with its dimensions reordered."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
