# SPDX-License-Identifier: Apache-2.0
"""A loaded NEFF as the function that AOTAutograd calls, with as little Python in a call as there can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from . import execute_context
from .execute_context import ExecutionMeta
from .plan import CallPlan

Arguments = list[Any]


def make_callable(executable: _C.Executable, plan: CallPlan, meta: ExecutionMeta) -> Callable[[Arguments], Any]:
    """Return `run(args: list) -> tuple`, marked as taking its arguments in a list that it empties.

    Args:
        executable: loaded on the device that the plan's tensors are on.
        plan: how arguments and results map to the executable's.
        meta: what hooks are told.
    """
    graph_call = _C.GraphCall(executable, list(plan.arguments), list(plan.results), plan.has_rng_seed)
    core: Callable[[Arguments], Any] = graph_call if plan.is_direct else _around(graph_call, plan, meta.device_id)

    def run(args: Arguments) -> Any:
        if execute_context._active is not None:
            _hooked_inputs(args, plan, meta)
            replaced = _replaced(args, plan, meta)
            if replaced is not None:
                args.clear()
                return replaced
        results = core(args)
        args.clear()
        return results

    run._executable = executable  # type: ignore[attr-defined]  # alive as long as a graph uses it: see `executables`
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _around(graph_call: Callable[[Arguments], Any], plan: CallPlan, device_index: int) -> Callable[[Arguments], Any]:
    """Return a call with everything that is not the executable's: constants, moves, windows, plain values."""
    device = torch.device("neuron", device_index)
    constants = list(plan.constants)
    finish = _finisher(plan)

    def call(args: Arguments) -> Any:
        moved = list(args)
        for index in plan.cpu_arguments:
            moved[index] = args[index].to(device)
        outputs = graph_call(moved + constants)
        for index in plan.cpu_arguments:
            if index in plan.written_arguments:
                args[index].copy_(moved[index])
        return finish(args, outputs)

    return call


def _finisher(plan: CallPlan) -> Callable[[Arguments, Any], tuple[Any, ...]]:
    def finish(args: Arguments, outputs: Any) -> tuple[Any, ...]:
        results = list(outputs)
        for position, (kind, index) in enumerate(plan.results):
            if kind == "input":
                results[position] = args[index]  # a moved argument must not be returned for the caller's own
        for position, window in plan.windows.items():
            base = results[position]
            offset = window.offset + (base.storage_offset() if window.on_argument else 0)
            results[position] = base.as_strided(window.size, window.stride, offset)
        for position in plan.cpu_results:
            results[position] = results[position].cpu()
        for position, empty in plan.empties.items():
            results[position] = torch.empty_strided(empty.size, empty.stride, dtype=empty.dtype, device=empty.device)
        for position, value in plan.values.items():
            results[position] = value
        return tuple(results)

    return finish


def _hooked_inputs(args: Arguments, plan: CallPlan, meta: ExecutionMeta) -> None:
    context = execute_context.get_execute_context()
    if context is not None and context.pre_execute_hook is not None:
        context.pre_execute_hook(_inputs(args, plan), meta)


def _replaced(args: Arguments, plan: CallPlan, meta: ExecutionMeta) -> tuple[Any, ...] | None:
    context = execute_context.get_execute_context()
    if context is None or context.execute_hook is None:
        return None
    outputs = context.execute_hook(_inputs(args, plan), meta)
    chosen: dict[str, Callable[[int], Any]] = {
        "output": lambda k: outputs[k],
        "input": lambda i: args[i],
        "none": lambda _: None,
    }
    return _finisher(plan)(args, [chosen[kind](index) for kind, index in plan.results])


def _inputs(args: Arguments, plan: CallPlan) -> tuple[torch.Tensor, ...]:
    everything = [*args, *plan.constants]
    return tuple(everything[index] for index in plan.arguments)
