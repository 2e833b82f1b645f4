# SPDX-License-Identifier: Apache-2.0
"""Runs AOTAutograd on a Dynamo graph: an inference graph for each set of concrete sizes, or a refusal."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from .._errors import GradientError
from .._log import get_logger
from ..fx_passes.attention import replace_attention
from ..fx_passes.decompositions import decomposition_table
from ..fx_passes.grouped_heads import fold_repeated_heads

_logger = get_logger(__name__)

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

_GRADIENTS = (
    "neuron backend doesn't support events: a graph that needs gradients was to be compiled, and this backend runs"
    " inference only. Compile and call the model under torch.no_grad() or torch.inference_mode(), or set"
    " requires_grad_(False) on its parameters."
)


def _refuse_gradients(*_: Any, **__: Any) -> Any:
    raise GradientError(_GRADIENTS)


def trace(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: GraphCompiler, *, optional_passes: bool = True
) -> Callable[..., Any]:
    """Trace a Dynamo graph and compile it with `compiler`; return what Dynamo calls with the graph's arguments.

    With symbolic sizes or numbers nothing is compiled yet: each set of concrete ones compiles a graph of its own when
    it first comes, so a size is a constant in every executable.

    `optional_passes` False leaves out the passes that only make code better.

    Raises:
        GradientError: a result needs gradients.
    """
    replace_attention(gm)
    if optional_passes:
        fold_repeated_heads(gm)
    numbers = _number_arguments(gm)
    if numbers or any(_is_symbolic(value) for value in example_inputs):
        return _Buckets(gm, compiler, numbers)
    return _trace_concrete(gm, example_inputs, compiler)


def _trace_concrete(gm: fx.GraphModule, inputs: Sequence[Any], compiler: GraphCompiler) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import aot_module_simplified

    traced: Callable[..., Any] = aot_module_simplified(
        gm,
        list(inputs),
        fw_compiler=_refuse_gradients,
        bw_compiler=_refuse_gradients,
        inference_compiler=cast(Any, compiler),
        partition_fn=_refuse_gradients,
        decompositions=decomposition_table(),
        keep_inference_input_mutations=True,
    )
    return traced


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return any(isinstance(number, torch.SymInt) for number in numbers)


def _number_arguments(gm: fx.GraphModule) -> frozenset[int]:
    """Return the positions of Python floats among the arguments: Dynamo passes a CPU tensor and reads its item."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return frozenset(
        position
        for position, node in enumerate(placeholders)
        if node.users and all(user.op == "call_method" and user.target == "item" for user in node.users)
    )


def _fix_numbers(gm: fx.GraphModule, args: Sequence[Any], numbers: frozenset[int]) -> dict[int, torch.Tensor]:
    """Make the values of number arguments constants of the graph, in place.

    A result that is computed from numbers alone (Dynamo wants it as a float64 tensor on the CPU) is taken out of the
    graph: returns result position -> tensor, and the graph returns None there.
    """
    graph = gm.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for position in numbers:
        for item in list(placeholders[position].users):
            item.replace_all_uses_with(args[position].item())
            graph.erase_node(item)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    taken: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.all_input_nodes:
            continue
        if getattr(node.target, "__module__", None) in ("_operator", "math"):
            node.replace_all_uses_with(node.target(*node.args))
            graph.erase_node(node)
        elif node.target is torch.scalar_tensor and set(node.users) == {output}:
            taken[node] = torch.scalar_tensor(*node.args, **node.kwargs)
    results = list(output.args[0])
    values = {position: taken[node] for position, node in enumerate(results) if node in taken}
    output.args = (tuple(None if position in values else node for position, node in enumerate(results)),)
    for node in taken:
        graph.erase_node(node)
    gm.recompile()
    return values


class _Buckets:
    """A Dynamo graph with symbolic sizes or numbers: one compiled graph for each set of concrete ones."""

    def __init__(self, gm: fx.GraphModule, compiler: GraphCompiler, numbers: frozenset[int]) -> None:
        self._gm = gm
        self._compiler = compiler
        self._numbers = numbers
        self._graphs: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        key = tuple(
            value.item() if position in self._numbers else _concrete(value) for position, value in enumerate(args)
        )
        graph = self._graphs.get(key)
        if graph is None:
            with self._lock:
                graph = self._graphs.get(key)
                if graph is None:
                    graph = self._graphs[key] = self._compile(args, key)
        return graph(*args)

    def _compile(self, args: Sequence[Any], key: tuple[Any, ...]) -> Callable[..., Any]:
        sizes = [tuple(part[0]) if isinstance(part, tuple) else part for part in key]
        _logger.debug("compiling bucket %d of a graph with symbolic sizes, for %s", len(self._graphs) + 1, sizes)
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode

        # Without a shape environment nothing can become symbolic again, plain numbers least of all.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        gm = copy.deepcopy(self._gm)
        values = _fix_numbers(gm, args, self._numbers) if self._numbers else {}
        with tracing(TracingContext(mode)):
            graph = _trace_concrete(gm, fakes, self._compiler)
        if not values:
            return graph

        def with_values(*args: Any) -> tuple[Any, ...]:
            return tuple(values.get(position, result) for position, result in enumerate(graph(*args)))

        return with_values


def _concrete(value: Any) -> Any:
    """Return what distinguishes buckets: a tensor's sizes, strides, dtype and device; a number's value."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return value
