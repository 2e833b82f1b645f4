# SPDX-License-Identifier: Apache-2.0
"""The host compiler: StableHLO in, a NEFF for the target `host` out. The work happens in a worker process."""

from __future__ import annotations

from pathlib import Path

DEFAULT_TIMEOUT = 600.0  # seconds; a module of 2000 ops takes well under two


def compiler_version() -> str:
    """Return the package's version, which every NEFF names."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("libtorch-neuronx-lite")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"


def compile_stablehlo(
    module: bytes, *, name: str, timeout: float = DEFAULT_TIMEOUT, repro_dir: Path | None = None
) -> bytes:
    """Compile a StableHLO module to a NEFF for the target `host`.

    An argument attribute ``tf.aliasing_output = N : i32`` makes output N that argument's memory.

    Args:
        module: MLIR bytecode, a StableHLO portable artifact, or text.
        name: the graph's name; it goes into the NEFF and into errors.
        timeout: seconds.
        repro_dir: the folder for a file that replays a failed compilation.

    Raises:
        JobError: the module is invalid, or an op has no lowering; names the op and its location.
        WorkerError: the worker process died, hung or outgrew its memory limit.
    """
    from libtorch_neuronx_lite import worker

    result = worker.run(
        "hostcc.compiler:compile",
        {"module": module},
        {"name": name, "compiler": compiler_version()},
        timeout=timeout,
        name=name,
        repro_dir=repro_dir,
    )
    return result.blobs["neff"]
