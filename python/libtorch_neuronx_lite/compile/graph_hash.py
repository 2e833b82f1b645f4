# SPDX-License-Identifier: Apache-2.0
"""A canonical digest of an AOTAutograd graph: spelling, names and device indices do not change it, meaning does.

Node names become positions, arguments are put in the order of the operator's schema with its defaults filled in, a
list and a tuple are the same, and every neuron device is `neuron`. What the digest covers beyond the nodes: dtype,
shape, strides, offset and shared storage of the inputs and of the results, the elements of small stored tensors, what
AOTAutograd knows about aliases, and the code of Python functions that the graph calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .._errors import CompileError
from ..fx_passes.collectives import replica_groups
from ..fx_passes.constants import LITERAL_BYTES, argument_tensors
from ..fx_passes.device import graph_device
from ..fx_passes.results import alias_info
from .source_digest import source_digest

_REQUIRED = object()
_NEURON = ("neuron", "meta")  # a meta tensor stands for a neuron one
_GROUP = ("group_name", "group")  # parameters of collectives
_PRINTED = (
    int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.memory_format, torch.layout,
)  # fmt: skip


@dataclass(frozen=True)
class GraphIdentity:
    """What a graph is, apart from how it is spelt.

    Attributes:
        digest: 64 hexadecimal digits.
        device: the neuron device that it works on; None where it names none, or none by its index.
        constants: stored tensors that become arguments of the executable, in their order.
    """

    digest: str
    device: torch.device | None
    constants: list[torch.Tensor]


def identify(gm: fx.GraphModule) -> GraphIdentity:
    """Return the identity of an inference graph as AOTAutograd made it.

    Call it inside the trace that made the graph, where AOTAutograd's view of the results can be read.

    Raises:
        CompileError: the graph works on two neuron devices; or an argument of a node is of a kind that has no canonical
            form. It may give itself one by a method `__neuron_cache_key__() -> str`.
    """
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    returned = output.args[0]
    results = len(returned) if isinstance(returned, (list, tuple)) else 1
    arguments = sum(node.op == "placeholder" for node in gm.graph.nodes)
    infos = alias_info(results, arguments)
    encoder = _Encoder(gm)
    lines = [repr([(info.kind, info.base) for info in infos] if infos is not None else None), *encoder.lines()]
    devices = encoder.devices
    device = next((d for d in devices if d.index is not None), None)
    if len(devices) > 1:
        device = graph_device(gm)  # refuses two, and resolves one that is named without an index
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return GraphIdentity(digest, device, argument_tensors(gm))


class _Encoder:
    """Turns the nodes of one graph into lines."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        self._number: dict[fx.Node, int] = {}
        self._storages: dict[int, int] = {}
        self.devices: set[torch.device] = set()
        self._functions: dict[Any, tuple[str, tuple[tuple[str, Any], ...] | None]] = {}

    def lines(self) -> list[str]:
        return [self._node(node) for node in self._gm.graph.nodes]

    def _node(self, node: fx.Node) -> str:
        number = self._number[node] = len(self._number)
        if node.op == "call_function":
            name, parameters = self._function(node.target)
            given = self._arguments(node, parameters)
            return f"{number} {name}({given})"
        if node.op == "placeholder":
            return f"{number} input {self._value(node.meta.get('val'))}"
        if node.op == "get_attr":
            return f"{number} stored {self._stored(str(node.target))}"
        if node.op == "output":
            values = [n.meta.get("val") if isinstance(n, fx.Node) else n for n in _flat(node.args[0])]
            return f"{number} return {self._argument(node, node.args[0])} {[self._value(v) for v in values]}"
        return f"{number} {node.op} {node.target}({self._arguments(node, None)})"

    def _function(self, target: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None]:
        """Return the name of a called function and its parameters, (name, default) in order, where a schema says so."""
        known = self._functions.get(target)
        if known is None:
            if isinstance(target, torch._ops.OpOverload):
                parameters = tuple(
                    (argument.name, argument.default_value if argument.has_default_value() else _REQUIRED)
                    for argument in target._schema.arguments
                )
                known = f"{target}{_python_kernels(target)}", parameters
            elif isinstance(target, torch._ops.HigherOrderOperator):
                known = f"higher_order {target._name}", None
            else:
                known = f"python {source_digest(target)}", None
            self._functions[target] = known
        return known

    def _arguments(self, node: fx.Node, parameters: tuple[tuple[str, Any], ...] | None) -> str:
        if parameters is None:
            named = sorted(node.kwargs.items())
            return self._argument(node, node.args) + "".join(f",{k}={self._argument(node, v)}" for k, v in named)
        args, kwargs = node.args, node.kwargs
        given: list[str] = []
        for position, (name, default) in enumerate(parameters):
            value = args[position] if position < len(args) else kwargs.get(name, default)
            if name in _GROUP and value is not _REQUIRED:
                given.append(_groups(value))
            elif value is not _REQUIRED:
                given.append(self._argument(node, value))
        return ",".join(given)

    def _argument(self, node: fx.Node, value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{self._number[value]}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join([self._argument(node, item) for item in value]) + "]"
        if isinstance(value, _PRINTED):
            return repr(value)
        if isinstance(value, torch.device):
            return self._device(value)
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{k!r}:{self._argument(node, v)}" for k, v in sorted(value.items())) + "}"
        if isinstance(value, slice):
            return f"slice{self._argument(node, (value.start, value.stop, value.step))}"
        if isinstance(value, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            return self._function(value)[0]
        own = getattr(value, "__neuron_cache_key__", None)
        if callable(own):
            return f"own {own()!r}"
        if callable(value) and not isinstance(value, type):
            return f"python {source_digest(value)}"
        raise CompileError(
            f"argument {value!r} of node '{node.name}' ({node.target}) has no canonical form, and so the graph no"
            " cache key. Give its class a method __neuron_cache_key__() that returns all that the code depends on."
        )

    def _device(self, device: torch.device) -> str:
        if device.type == "neuron":
            self.devices.add(device)
        return "neuron" if device.type in _NEURON else device.type

    def _value(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        storage = value.untyped_storage()._cdata
        shared = self._storages.setdefault(storage, len(self._storages))
        return (
            f"{value.dtype}{list(value.shape)}{list(value.stride())}+{value.storage_offset()}"
            f"@{self._device(value.device)}#{shared}"
        )

    def _stored(self, target: str) -> str:
        value = reduce(getattr, target.split("."), self._gm)
        if isinstance(value, fx.GraphModule):
            inner = _Encoder(value)
            lines = ";".join(inner.lines())
            self.devices |= inner.devices
            return f"graph[{lines}]"
        if not isinstance(value, torch.Tensor):
            return repr(value)
        form = self._value(value)
        if value.numel() * value.element_size() > LITERAL_BYTES:
            return form  # it becomes an argument, and its elements are no part of the executable
        with unset_fake_temporarily():
            elements = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{form} {elements.hex()}"


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _groups(group: Any) -> str:
    """Return the groups of the world that do what this one does: a group's name is a counter of its process."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if isinstance(group, str):
        group = cast(Any, distributed_c10d)._resolve_process_group(group)
    if not isinstance(group, dist.ProcessGroup):
        return repr(group)  # known only when it runs: lowering refuses it
    world = dist.get_world_size()
    return f"groups {replica_groups(dist.get_process_group_ranks(group), world)} of {world}"


def _python_kernels(overload: torch._ops.OpOverload) -> str:
    """Return the digest of the Python functions behind a custom operator, empty for an operator that has none."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(overload._schema.name)
    if definition is None:
        return ""
    functions: list[Callable[..., Any]] = [definition._init_fn, *definition._backend_fns.values()]
    return " " + source_digest(*functions)
