# SPDX-License-Identifier: Apache-2.0
"""From an inference graph to a callable: key, cache; on a miss passes, StableHLO, compiler; then load."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import shutil
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
from ..fx_passes.collectives import World, world_of
from ..fx_passes.prepare import PreparedGraph, prepare
from ..runtime.execute_context import ExecutionMeta
from ..runtime.plan import CallPlan, EmptyTensor, Window
from ..stablehlo.lower import LoweredGraph, lower
from . import neuronx_cc, platform
from .entry import COMMAND, EXAMPLE_INPUTS, FX_GRAPH, LOG, MODULE, Artifact, neff_name
from .host_slots import compiler_slot
from .key import distribution_version, key_of
from .miss import explain_miss
from .no_device import check_cpu_compile, not_here
from .options import Options
from .request import CompileRequest, request_for
from .schema import create_metadata
from .store import FAILED, Store, build_uncached, writable_root

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Lowered:
    """A graph on its way to a compiler."""

    stablehlo: LoweredGraph
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
        CacheError: the compile cache is full, or another process holds the graph for too long.
    """
    check_cpu_compile()
    parsed = Options.parse(options)
    gm, example_inputs = preprocess_and_validate_inputs(gm, example_inputs, options)
    request = request_for(gm, parsed)
    world = world_of(gm)
    artifact = build_executable(gm=gm, example_inputs=example_inputs, request=request)
    if envs.NEURON_LIBTORCH_CPU_COMPILE:
        return not_here(f"graph '{request.name}' was compiled for {request.target}, and this process has no device")
    device, constants = request.identity.device, request.identity.constants
    with unset_fake_temporarily():
        run = make_run(artifact, device.index if device is not None else None, constants, world)
    if world is not None or not _is_to_be_saved():
        return run
    from .portable_graph import portable

    return portable(artifact, request, run)


def make_run(
    artifact: Artifact, device_index: int | None, constants: Sequence[torch.Tensor], world: World | None = None
) -> Callable[[list[Any]], Any]:
    """Load a compiled graph on a core, the current one by default, and return what AOTAutograd calls."""
    # The runtime's half loads the extension, which a caller who only lowers graphs does without.
    from .. import _C
    from ..runtime.compiled_graph import make_callable
    from ..runtime.executables import load
    from ..runtime.plan_record import from_record

    index = device_index if device_index is not None else int(_C.current_device())
    world = world or World(0, 1)
    executable = load(artifact.key, artifact.neff, index, world.rank, world.size)
    device = torch.device("neuron", index)
    plan = from_record(artifact.metadata["call"], [constant.to(device) for constant in constants], device)
    folder = str(artifact.folder) if artifact.folder is not None else None
    return make_callable(executable, plan, ExecutionMeta(artifact.key, folder, index))


def _is_to_be_saved() -> bool:
    """Return whether PyTorch is about to put what is compiled now into an artifact of its own."""
    from torch._functorch import config

    return bool(config.bundled_autograd_cache and config.force_autograd_cache)


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


def build_executable(*, gm: fx.GraphModule, example_inputs: Sequence[Any], request: CompileRequest) -> Artifact:
    """Return the compiled graph: from the compile cache, or lowered and compiled by the target's compiler.

    Raises:
        CompileError: the compiler refused the graph, failed, or is not installed; or the graph is in no cache where the
            environment makes that an error.
        CacheError: see `store.Store.obtain`.
    """
    from ..runtime.plan_record import from_record

    def check(artifact: Artifact) -> None:
        from_record(artifact.metadata.get("call"), request.identity.constants, torch.device("cpu"))

    def build(folder: Path) -> dict[str, Any]:
        return build_entry(folder, gm=gm, example_inputs=example_inputs, request=request)

    started = time.perf_counter()
    store = Store.from_environment(request.options.compiler_workdir, check)
    if envs.NEURON_LIBTORCH_DISABLE_COMPILE_CACHE:
        artifact = build_uncached(request.key, build)
    else:
        about = functools.partial(explain_miss, store.root, request.parts)
        artifact = store.obtain(request.key, build, name=request.name, about=about)
    _logger.info(
        "graph %s (%s): NEFF of %d bytes in %.2f s",
        request.name, request.key, len(artifact.neff), time.perf_counter() - started,
    )  # fmt: skip
    return artifact


def build_entry(
    folder: Path, *, gm: fx.GraphModule, example_inputs: Sequence[Any], request: CompileRequest
) -> dict[str, Any]:
    """Lower and compile a graph, write all files of its entry but metadata and marker, and return the metadata."""
    lowered, metadata = write_graph(folder, gm=gm, example_inputs=example_inputs, request=request)
    compile_lowered(lowered, folder, request.key, _failed_folder(request.options.compiler_workdir))
    return metadata


def write_graph(
    folder: Path, *, gm: fx.GraphModule, example_inputs: Sequence[Any], request: CompileRequest
) -> tuple[Lowered, dict[str, Any]]:
    """Lower a graph, write the files that tell about it and `module.mlir`, and return it with the entry's metadata."""
    from ..runtime.plan_record import PlanError

    (folder / FX_GRAPH).write_text(f"{gm.graph}\n", encoding="utf-8")
    (folder / EXAMPLE_INPUTS).write_text(_describe_inputs(gm, example_inputs), encoding="utf-8")
    prepared, lowered = lower_graph(gm, request)
    try:
        metadata = _metadata(prepared, lowered, request)
    except PlanError as error:
        raise CompileError(f"graph '{request.name}': {error}") from error
    if lowered.target == platform.HOST:
        (folder / MODULE).write_bytes(lowered.stablehlo.bytecode)
    else:
        (folder / MODULE).write_text(lowered.stablehlo.text(), encoding="utf-8")
    return lowered, metadata


def compile_lowered(lowered: Lowered, folder: Path, key: str, failed: Path | None = None) -> None:
    """Compile a lowered graph: write module, command, log and NEFF into a folder.

    `failed` is the folder for what shows a failure again; by default that of the environment's cache.

    Raises:
        CompileError: the compiler refused the graph, failed, or is not installed.
    """
    compile_module = _compile_for_host if lowered.target == platform.HOST else _compile_for_chip
    compile_module(lowered, folder, key, failed or _failed_folder(None))


def rebuild(module: bytes, metadata: dict[str, Any], parts: dict[str, Any], name: str) -> Artifact:
    """Compile a graph that was lowered earlier once more, under the target, arguments and versions of `parts`.

    The result is kept nowhere: a graph that is lowered now may be another one than this.

    Args:
        module: the StableHLO.
        metadata: of its earlier executable; how it is called does not change.
        parts: of the key.
        name: of the graph.

    Raises:
        CompileError: the compiler refused the graph, failed, or is not installed.
    """
    key = key_of(parts)

    def build(folder: Path) -> dict[str, Any]:
        stablehlo = LoweredGraph(module, metadata["stablehlo_digest"], metadata["operations"])
        compile_lowered(Lowered(stablehlo, parts["target"], tuple(parts["args"]), name), folder, key)
        return {**metadata, "cache_key": key, "key_parts": parts}

    return build_uncached(key, build)


def lower_graph(gm: fx.GraphModule, request: CompileRequest) -> tuple[PreparedGraph, Lowered]:
    """Run the passes on the graph, in place, and lower it to StableHLO."""
    started = time.perf_counter()
    prepared = prepare(gm)
    passes_done = time.perf_counter()
    stablehlo = lower(
        prepared.gm,
        prepared.input_aliases(),
        name=request.name,
        repro_dir=_failed_folder(request.options.compiler_workdir),
        replicas=prepared.world.size if prepared.world is not None else 0,
    )
    done = time.perf_counter()
    _logger.info(
        "graph %s (%s): %d nodes, passes %.2f s, StableHLO %.2f s",
        request.name, request.key, len(prepared.gm.graph.nodes), passes_done - started, done - passes_done,
    )  # fmt: skip
    return prepared, Lowered(stablehlo, request.target, request.compiler_args, request.name)


def _compile_for_host(lowered: Lowered, folder: Path, key: str, failed: Path) -> None:
    """Write the graph and its NEFF for the target `host`, with the command that makes it again."""
    limit: float = envs.NEURON_LIBTORCH_COMPILATION_TIMEOUT
    neff = neff_name(key)
    line = ["python", "-m", "libtorch_neuronx_lite.hostcc", "compile", MODULE, "--framework", "XLA", "--target", "host"]
    line += ["--output", neff, "--logfile", LOG, "--name", lowered.name]
    (folder / MODULE).write_bytes(lowered.stablehlo.bytecode)
    (folder / COMMAND).write_text(shlex.join([*line, *lowered.compiler_args]) + "\n", encoding="utf-8")
    started = time.perf_counter()
    try:
        with compiler_slot(lowered.name):
            result = worker.run(
                "hostcc.compiler:compile",
                {"module": lowered.stablehlo.bytecode},
                {"name": lowered.name, "compiler": distribution_version()},
                timeout=limit,
                name=lowered.name,
                repro_dir=failed,
            )
    except (worker.JobError, worker.WorkerError) as error:
        failure = CompileError(f"hostcc does not compile the graph '{lowered.name}': {error}")
        raise failure from error
    (folder / neff).write_bytes(result.blobs["neff"])
    (folder / LOG).write_text(
        f"hostcc in {time.perf_counter() - started:.2f} s: {json.dumps(result.info)}\n", encoding="utf-8"
    )


def _compile_for_chip(lowered: Lowered, folder: Path, key: str, failed: Path) -> None:
    """Write the graph as text and its NEFF for a chip; what a failure leaves goes to `failed/<name>-<key>/`."""
    try:
        neuronx_cc.compile_neff(
            lowered.stablehlo.text(),
            folder,
            neff=neff_name(key),
            name=lowered.name,
            target=lowered.target,
            args=lowered.compiler_args,
        )
    except CompileError as error:
        kept = failed / f"{lowered.name[:64]}-{key}"
        with contextlib.suppress(OSError):
            shutil.copytree(folder, kept, dirs_exist_ok=True, symlinks=True)
            if error.repro is not None:
                error.attach_repro(kept / error.repro.name)
        raise


def _failed_folder(workdir: Path | None) -> Path:
    """Return the folder for what shows a failure again; one that can be written."""
    root = workdir or Path(envs.get_neuron_compile_cache_dir())
    return writable_root(root) / FAILED


def _describe_inputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return a line for each input: name, dtype, shape, strides, device type; or the value of what is no tensor."""
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    lines = [
        f"{name} {value.dtype} {list(value.shape)} {list(value.stride())} {value.device.type}"
        if isinstance(value, torch.Tensor)
        else f"{name} {value!r}"
        for name, value in zip(names, inputs, strict=True)
    ]
    return "".join(f"{line}\n" for line in lines)


def _metadata(prepared: PreparedGraph, lowered: Lowered, request: CompileRequest) -> dict[str, Any]:
    from ..runtime.plan_record import to_record

    plan = _call_plan(prepared, torch.device("neuron", 0))
    metadata = create_metadata(
        cache_key=request.key,
        output_count=len(plan.results),
        unused_input_indices=sorted(set(range(plan.argument_count)) - set(plan.arguments)),
        has_rng_seed_parameter=plan.has_rng_seed,
        io_map=prepared.input_aliases(),
    )
    return {
        **metadata,
        "name": request.name,
        "key_parts": request.parts,
        "stablehlo_digest": lowered.stablehlo.digest,
        "operations": lowered.stablehlo.operations,
        "call": to_record(plan),
    }


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
        constants=prepared.constants,
        cpu_arguments=sorted(prepared.cpu_arguments),
        written_arguments=sorted(results.aliases.values()),
        values=results.values,
        windows=windows,
        empties=empties,
        cpu_results=sorted(results.on_cpu),
    )
