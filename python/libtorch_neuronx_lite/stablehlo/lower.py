# SPDX-License-Identifier: Apache-2.0
"""From a prepared graph to StableHLO bytes: import here, passes in a worker, every failure one exception."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import fx
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from .. import worker
from .._errors import CompileError
from ..fx_passes.editing import source_line
from .culprit import find_culprit
from .importer import import_graph, unsupported

# Seconds for the passes over one graph; a large model's decode step takes about two.
TIMEOUT = 600.0


@dataclass(frozen=True)
class LoweredGraph:
    """A graph in StableHLO.

    Attributes:
        bytecode: the module as MLIR bytecode, source locations included.
        digest: of the module's text without locations.
        operations: how many operations it has.
    """

    bytecode: bytes
    digest: str
    operations: int

    def text(self) -> str:
        """Return the module as text, for compilers that read that."""
        context = ir.Context()
        _stablehlo.register_dialect(context)
        with context:
            return str(ir.Module.parse(self.bytecode))


def lower(
    gm: fx.GraphModule, aliases: dict[int, int], *, name: str, repro_dir: Path, replicas: int = 0
) -> LoweredGraph:
    """Lower a prepared graph to StableHLO, function `main`.

    Args:
        gm: a prepared graph.
        aliases: output index -> input index whose memory it is; marked as `tf.aliasing_output` on the argument.
        name: the graph's name, for messages.
        repro_dir: folder for the file that shows a failure again.
        replicas: how many processes the graph's collectives join; 0 without collectives.

    Raises:
        UnsupportedOperatorError: with the operator, the user's line and the repro file.
        CompileError: any other failure of the lowering.
    """
    try:
        module = import_graph(gm)
    except CompileError as error:
        error.attach_repro(write_graph(gm, name, repro_dir))
        raise
    params = {
        "aliases": [[output, source] for output, source in sorted(aliases.items())],
        "name": name,
        "replicas": replicas,
    }
    try:
        result = worker.run(
            "stablehlo.pipeline:lower", {"torch": module}, params, timeout=TIMEOUT, name=name, repro_dir=repro_dir
        )
    except (worker.JobError, worker.WorkerError) as error:
        raise _explain(gm, name, str(error), error, repro_dir) from error
    return LoweredGraph(result.blobs["stablehlo"], result.info["digest"], result.info["operations"])


def _explain(
    gm: fx.GraphModule, name: str, text: str, error: worker.JobError | worker.WorkerError, repro_dir: Path
) -> CompileError:
    repro = error.repro or write_graph(gm, name, repro_dir)
    if isinstance(error, worker.JobError) and error.kind == "unsupported-op" and error.op is not None:
        failure: CompileError = unsupported(
            gm, error.op, "torch-mlir has no lowering for this use of it", error.location
        )
    else:
        culprit = find_culprit(gm) if isinstance(error, worker.WorkerError) else None
        blame = ""
        if culprit is not None:
            blame = (
                f"operator {culprit.target}, used at {source_line(culprit) or 'an unknown line'}, ends the compiler. "
            )
        failure = CompileError(f"lowering the graph '{name}' to StableHLO failed: {blame}{text}")
    failure.attach_repro(repro)
    return failure


def write_graph(gm: fx.GraphModule, name: str, folder: Path) -> Path:
    """Write the graph as readable code and return the file, a new one for each graph."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".fxgraph.txt", dir=folder)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(gm.print_readable(print_output=False))
    return Path(path)
