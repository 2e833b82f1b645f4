# SPDX-License-Identifier: Apache-2.0
"""Runs the Neuron compiler for chip targets: one command, its log kept, its last lines in the error."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .. import envs
from .._errors import CompileError, CompilerNotFoundError

COMMAND = "neuronx-cc"
# Quoted in an error: enough for the compiler's own message, not its whole log.
_TAIL_LINES = 20
_DEFAULT_LEVEL = "-O2"


def find() -> str:
    """Return the compiler's path.

    Raises:
        CompilerNotFoundError: saying where it comes from and which target needs none.
    """
    path = shutil.which(COMMAND)
    if path is None:
        raise CompilerNotFoundError(
            f"the compiler '{COMMAND}' is not on PATH. It comes with the AWS Neuron SDK: pip install neuronx-cc"
            " --extra-index-url=https://pip.repos.neuron.amazonaws.com. The target 'host' needs no such compiler:"
            " NEURON_PLATFORM_TARGET_OVERRIDE=host, or leave out --target."
        )
    return path


def command(graph: Path, neff: Path, log: Path, target: str, args: Sequence[str]) -> list[str]:
    """Return the command line; the optimisation level is O2 unless the arguments give one."""
    level = [] if any(_is_level(arg) for arg in args) else [_DEFAULT_LEVEL]
    fixed = ["compile", str(graph), "--framework", "XLA", "--target", target]
    return [find(), *fixed, "--output", str(neff), "--logfile", str(log), *level, *args]


def _is_level(arg: str) -> bool:
    return arg in ("-O1", "-O2", "-O3", "--optlevel", "--optimization-level") or arg.startswith(
        ("--optlevel=", "--optimization-level=")
    )


def compile_neff(module: str, workdir: Path, *, name: str, target: str, args: Sequence[str]) -> bytes:
    """Compile StableHLO text to a NEFF and return its bytes.

    Args:
        module: the module's text.
        workdir: folder that gets the graph, the command, the log and the NEFF.
        name: the graph's name.
        target: a chip.
        args: the caller's arguments, without `--target`.

    Raises:
        CompilerNotFoundError: the compiler is not installed.
        CompileError: it failed, ran out of time, or left no NEFF.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    graph, neff, log = workdir / "module.mlir", workdir / f"graph_{name}.neff", workdir / "log-neuron-cc.txt"
    line = command(graph, neff, log, target, args)
    graph.write_text(module, encoding="utf-8")
    (workdir / "command.txt").write_text(shlex.join(line) + "\n", encoding="utf-8")
    limit: float = envs.NEURON_LIBTORCH_COMPILATION_TIMEOUT
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=limit, cwd=workdir, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"{COMMAND} did not finish the graph '{name}' in {limit:.0f} s; NEURON_LIBTORCH_COMPILATION_TIMEOUT"
            " sets the limit",
            graph,
        ) from None
    if done.returncode != 0 or not neff.is_file():
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_TAIL_LINES:])
        state = f"ended with status {done.returncode}" if done.returncode else "ended well but wrote no NEFF"
        raise CompileError(f"{COMMAND} {state} on the graph '{name}' for {target}. Its last lines:\n{tail}", graph)
    return neff.read_bytes()
