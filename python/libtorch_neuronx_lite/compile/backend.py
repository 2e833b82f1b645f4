# SPDX-License-Identifier: Apache-2.0
"""From an inference graph to a callable: passes, StableHLO, key, NEFF, load."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from .. import envs, worker
from .._errors import CompileError
from .._log import get_logger
from ..fx_passes.prepare import PreparedGraph, prepare
from ..runtime.execute_context import ExecutionMeta
from ..runtime.plan import CallPlan, EmptyTensor, Window
from ..stablehlo.lower import LoweredGraph, lower
from . import cache, neuronx_cc, platform
from .options import Options

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Lowered:
    """A graph on its way to a compiler: what to call, what to compile, and the key of the result."""

    prepared: PreparedGraph
    stablehlo: LoweredGraph
    key: str
    target: str
    compiler_args: tuple[str, ...]
    name: str


def compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile an AOTAutograd inference graph and return `run(args: list) -> tuple`.

    Args:
        gm: the graph, which is used up; its nodes carry fake values in `meta["val"]`, its sizes are concrete.
        example_inputs: one per placeholder.
        options: see `Options`.

    Raises:
        OptionError: an unknown option or target.
        CompileError: naming the node, the user's line and a repro file.
    """
    # The runtime's half loads the extension, which a caller who only lowers graphs does without.
    from ..runtime.compiled_graph import make_callable
    from ..runtime.executables import load

    parsed = Options.parse(options)
    gm, example_inputs = preprocess_and_validate_inputs(gm, example_inputs, options)
    lowered = lower_graph(gm, options)
    neff = build_executable(lowered=lowered, workdir=_workdir(parsed, lowered.key))
    with unset_fake_temporarily():
        index = _device_index(lowered.prepared)
        executable = load(lowered.key, neff, index)
        plan = _call_plan(lowered.prepared, torch.device("neuron", index))
        return make_callable(executable, plan, ExecutionMeta(lowered.key, None, index))


def preprocess_and_validate_inputs(
    gm: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> tuple[fx.GraphModule, list[Any]]:
    """Check that the inputs fit the graph; with `alias_meta_to_neuron` let meta tensors stand for neuron ones.

    Raises:
        CompileError: the count differs from the graph's placeholders, or an input is symbolic, or on the meta device
            without the option.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise CompileError(
            f"the graph has {len(placeholders)} placeholders and {len(inputs)} example inputs were given"
        )
    for node, value in zip(placeholders, inputs, strict=True):
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            raise CompileError(f"example input '{node.name}' is symbolic ({value}); an executable has concrete sizes")
    if Options.parse(options).alias_meta_to_neuron:
        return gm, meta_to_neuron(inputs)
    for node, value in zip(placeholders, inputs, strict=True):
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            raise CompileError(
                f"example input '{node.name}' is on the meta device, which holds no data. Give a neuron tensor, or the"
                " option alias_meta_to_neuron=True to let meta tensors stand for neuron ones."
            )
    return gm, list(inputs)


def meta_to_neuron(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs with a fake neuron tensor, all of one fake mode, in place of each meta tensor."""

    def is_meta(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "meta" and not isinstance(value, FakeTensor)

    if not any(is_meta(value) for value in inputs):
        return list(inputs)
    # The mode of inputs that are fake already, or of the trace around this: two modes do not mix.
    mode = detect_fake_mode(list(inputs)) or FakeTensorMode(allow_non_fake_inputs=True)
    device = torch.device("neuron", 0)
    return [FakeTensor(mode, value, device) if is_meta(value) else value for value in inputs]


def lower_graph(gm: fx.GraphModule, options: Mapping[str, Any] | None = None) -> Lowered:
    """Run the passes on the graph, in place, lower it to StableHLO and name its key."""
    parsed = Options.parse(options)
    target = platform.resolve_target(parsed.compiler_args)
    args = tuple(platform.without_target(parsed.compiler_args))
    name = re.sub(r"\W", "_", parsed.model_name)
    started = time.perf_counter()
    prepared = prepare(gm)
    passes_done = time.perf_counter()
    stablehlo = lower(prepared.gm, prepared.input_aliases(), name=name, repro_dir=_workdir(parsed, "failed"))
    done = time.perf_counter()
    key = cache.graph_key(stablehlo.digest, target=target, compiler_args=args, label=parsed.model_name)
    _logger.info(
        "graph %s (%s): %d nodes, passes %.2f s, StableHLO %.2f s",
        name, key, len(prepared.gm.graph.nodes), passes_done - started, done - passes_done,
    )  # fmt: skip
    return Lowered(prepared, stablehlo, key, target, args, name)


def build_executable(*, lowered: Lowered, workdir: Path) -> bytes:
    """Return the NEFF of a lowered graph: from this process's cache, or from the target's compiler.

    Raises:
        CompileError: the compiler refused the graph, failed, or is not installed.
    """
    neff = cache.get(lowered.key)
    if neff is not None:
        return neff
    started = time.perf_counter()
    if lowered.target == platform.HOST:
        neff = _compile_for_host(lowered, workdir)
    else:
        text = lowered.stablehlo.text()
        neff = neuronx_cc.compile_neff(
            text, workdir, name=lowered.key, target=lowered.target, args=lowered.compiler_args
        )
    _logger.info("graph %s: NEFF of %d bytes in %.2f s", lowered.name, len(neff), time.perf_counter() - started)
    cache.put(lowered.key, neff)
    return neff


def _compile_for_host(lowered: Lowered, workdir: Path) -> bytes:
    limit: float = envs.NEURON_LIBTORCH_COMPILATION_TIMEOUT
    params = {"name": lowered.name, "compiler": cache.versions()["libtorch-neuronx-lite"]}
    try:
        result = worker.run(
            "hostcc.compiler:compile",
            {"module": lowered.stablehlo.bytecode},
            params,
            timeout=limit,
            name=lowered.name,
            repro_dir=workdir,
        )
    except (worker.JobError, worker.WorkerError) as error:
        failure = CompileError(f"hostcc does not compile the graph '{lowered.name}': {error}")
        raise failure from error
    return result.blobs["neff"]


def _workdir(options: Options, leaf: str) -> Path:
    root = options.compiler_workdir or Path(envs.get_neuron_compile_cache_dir())
    return root / leaf


def _device_index(prepared: PreparedGraph) -> int:
    if prepared.device is not None and prepared.device.index is not None:
        return prepared.device.index
    from .. import _C

    return int(_C.current_device())


def _call_plan(prepared: PreparedGraph, device: torch.device) -> CallPlan:
    results = prepared.results
    windows = {
        position: Window(layout.base is not None, layout.size, layout.stride, layout.offset)
        for position, layout in results.layouts.items()
    }
    empties = {
        position: EmptyTensor(empty.size, empty.stride, empty.dtype, torch.device("cpu") if empty.is_on_cpu else device)
        for position, empty in results.empties.items()
    }
    return CallPlan(
        argument_count=prepared.argument_count,
        arguments=prepared.arguments,
        results=results.plan,
        has_rng_seed=prepared.has_rng_seed,
        constants=[constant.to(device) for constant in prepared.constants],
        cpu_arguments=sorted(prepared.cpu_arguments),
        written_arguments=sorted(results.aliases.values()),
        values=results.values,
        windows=windows,
        empties=empties,
        cpu_results=sorted(results.on_cpu),
    )
