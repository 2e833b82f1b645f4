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

    With symbolic sizes nothing is compiled yet: each set of concrete sizes compiles a graph of its own when it first
    comes, so a size is a constant in every executable.

    `optional_passes` False leaves out the passes that only make code better.

    Raises:
        GradientError: a result needs gradients.
    """
    replace_attention(gm)
    if optional_passes:
        fold_repeated_heads(gm)
    if any(_is_symbolic(value) for value in example_inputs):
        return _Buckets(gm, compiler)
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


class _Buckets:
    """A Dynamo graph with symbolic sizes: one compiled graph for each set of concrete ones."""

    def __init__(self, gm: fx.GraphModule, compiler: GraphCompiler) -> None:
        self._gm = gm
        self._compiler = compiler
        self._graphs: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        key = tuple(_concrete(value) for value in args)
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
        with tracing(TracingContext(mode)):
            return _trace_concrete(copy.deepcopy(self._gm), fakes, self._compiler)


def _concrete(value: Any) -> Any:
    """Return what distinguishes buckets: a tensor's sizes, strides, dtype and device; a number's value."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return value
