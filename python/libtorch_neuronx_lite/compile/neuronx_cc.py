# SPDX-License-Identifier: Apache-2.0
"""Drives the Neuron compiler for chip targets: one command, its log kept, its own last lines in the error."""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .. import envs
from .._errors import CompileError, CompilerNotFoundError
from .._log import get_logger
from . import supervised
from .host_slots import compiler_slot
from .optimization_level import canonical

_logger = get_logger(__name__)

COMMAND = "neuronx-cc"
GRAPH, COMMAND_FILE, LOG, OUTPUT = "module.mlir", "command.txt", "log-neuron-cc.txt", "compiler-output.txt"

# Quoted in an error: enough for the compiler's own message, not its whole log.
_TAIL_LINES = 20
_MOST_LINE = 400
_MOST_LOG = 64 << 20  # bytes that are kept of the log which the compiler writes itself
_VERSION_SECONDS = 60.0  # the compiler imports a lot before it prints its version
_RETRY_PAUSE = 1.0  # seconds before the second attempt, doubled for each further one

# What the machine did to the compiler, as opposed to what the compiler thinks of the graph.
_TRANSIENT_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGBUS)
_TRANSIENT_ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY, errno.EINTR)
_TRANSIENT_TEXT = re.compile(
    r"Resource temporarily unavailable|Cannot allocate memory|Text file busy|Stale file handle"
    r"|Connection (?:reset|refused|timed out)|std::bad_alloc|\bOut of memory\b",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(r"\b(?:ERROR|FATAL|Error|error|Exception|Assertion)\b")
_OPERATION = re.compile(r"\b(?:stablehlo|chlo|mhlo|func)\.[a-z_]+\b|(?<=op ')[\w.]+(?=')|%[\w.-]+(?= = )")


def find() -> str:
    """Return the compiler's path: NEURON_LIBTORCH_NEURONX_CC, else `neuronx-cc` on PATH.

    Raises:
        CompilerNotFoundError: saying where it comes from and which target needs none.
    """
    named: str | None = envs.NEURON_LIBTORCH_NEURONX_CC
    path = shutil.which(named or COMMAND)
    if path is not None:
        return str(Path(path).absolute())
    where = f"NEURON_LIBTORCH_NEURONX_CC={named!r} is no executable file" if named else f"'{COMMAND}' is not on PATH"
    raise CompilerNotFoundError(
        f"the compiler for Neuron chips was not found: {where}. It is part of the AWS Neuron SDK: pip install"
        " neuronx-cc --extra-index-url=https://pip.repos.neuron.amazonaws.com. The target 'host' needs no such"
        " compiler: NEURON_PLATFORM_TARGET_OVERRIDE=host, or leave out --target."
    )


def version() -> str:
    """Return the version of the compiler that `find` finds, `absent` where there is none.

    NEURON_LIBTORCH_NEURONX_CC_VERSION states it instead: for a machine that uses what another one compiled.
    """
    stated: str | None = envs.NEURON_LIBTORCH_NEURONX_CC_VERSION
    if stated is not None:
        return stated
    try:
        path = find()
    except CompilerNotFoundError:
        return "absent"
    status = os.stat(path)
    return _version_of(path, status.st_mtime_ns, status.st_size)


@functools.cache
def _version_of(path: str, modified: int, size: int) -> str:
    """Read the version from the environment that the compiler is installed in, else ask the compiler, once."""
    if Path(path).parent == Path(sys.prefix) / "bin":
        try:
            return importlib.metadata.version(COMMAND)
        except importlib.metadata.PackageNotFoundError:
            pass
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(
            f"{path} does not tell its version, which is part of every cache key: {error}. State it with"
            " NEURON_LIBTORCH_NEURONX_CC_VERSION."
        ) from error
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return lines[0].strip() if lines else "unknown"


def command(neff: str, target: str, args: Sequence[str]) -> list[str]:
    """Return the command line; files are named relative to the folder it runs in, so that the folder can move.

    The level stands as `-O1`, `-O2` or `-O3` however the caller spelt it, and is O2 where the caller gave none.
    """
    fixed = ["compile", GRAPH, "--framework", "XLA", "--target", target, "--output", neff, "--logfile", LOG]
    return [COMMAND, *fixed, *canonical(args, target)]


def compile_neff(module: str, folder: Path, *, neff: str, name: str, target: str, args: Sequence[str]) -> None:
    """Compile StableHLO text to a NEFF in a folder, which also gets the graph, the command and the log.

    A fault of the machine (killed, out of memory, a lost connection) is tried again, NEURON_LIBTORCH_COMPILE_RETRIES
    times, within one limit of NEURON_LIBTORCH_COMPILATION_TIMEOUT seconds for all attempts.

    Args:
        module: the module's text.
        folder: exists; on failure the caller keeps it for whoever looks into it.
        neff: name of the NEFF in it.
        name: the graph's name, for messages.
        target: a chip.
        args: the caller's arguments, without `--target`.

    Raises:
        CompilerNotFoundError: the compiler is not installed.
        CompileError: it failed, ran out of time, or left no NEFF; names the graph, the operation where the compiler
            names it, and quotes the compiler's last lines. Its `repro` is the graph in the folder.
    """
    path = find()
    line = command(neff, target, args)
    graph = folder / GRAPH
    graph.write_text(module, encoding="utf-8")
    (folder / COMMAND_FILE).write_text(shlex.join(line) + "\n", encoding="utf-8")
    with compiler_slot(name):
        fault = _attempts([path, *line[1:]], folder, neff, name, target)
    if fault is not None:
        raise CompileError(fault, graph)


def _attempts(line: list[str], folder: Path, neff: str, name: str, target: str) -> str | None:
    """Run the compiler, again after a fault of the machine; return what is wrong, None for nothing."""
    limit: float = envs.NEURON_LIBTORCH_COMPILATION_TIMEOUT
    deadline = time.monotonic() + limit
    attempts = 1 + int(envs.NEURON_LIBTORCH_COMPILE_RETRIES)
    for attempt in range(1, attempts + 1):
        (folder / neff).unlink(missing_ok=True)  # of an attempt that failed half-way
        (folder / OUTPUT).unlink(missing_ok=True)
        fault, transient = _attempt(line, folder, neff, name, target, deadline, limit)
        if fault is None or not transient:
            return fault
        if attempt == attempts:
            break
        pause = _RETRY_PAUSE * 2 ** (attempt - 1)
        _logger.warning(
            "%s, which looks like a fault of the machine: attempt %d of %d in %.0f s",
            fault.splitlines()[0], attempt + 1, attempts, pause,
        )  # fmt: skip
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
    return f"{fault}\n({attempts} attempts)" if attempts > 1 else fault


def _attempt(
    line: list[str], folder: Path, neff: str, name: str, target: str, deadline: float, limit: float
) -> tuple[str | None, bool]:
    """Run the compiler once; return what is wrong, None for nothing, and whether trying again may help."""
    what = f"{COMMAND} on the graph '{name}' for {target}"
    try:
        ended = supervised.run(line, folder, folder / OUTPUT, max(deadline - time.monotonic(), 0.1))
    except OSError as error:
        return f"{what} could not be run: {error}", error.errno in _TRANSIENT_ERRORS
    log = folder / LOG
    _cut(log)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"exit status {ended.status} after {ended.seconds:.1f} s\n")
    tail = _last_lines(ended.tail) or _last_lines(_end_of(log))
    if ended.status is None:
        return (
            f"{what} did not finish in {limit:.0f} s and was ended; NEURON_LIBTORCH_COMPILATION_TIMEOUT sets the limit."
            f"{_quote(tail)}"
        ), False
    if ended.status < 0:
        ended_by = signal.Signals(-ended.status).name if -ended.status in set(signal.Signals) else str(-ended.status)
        return f"{what} was ended by signal {ended_by}.{_quote(tail)}", -ended.status in _TRANSIENT_SIGNALS
    if ended.status > 0:
        transient = ended.status == 128 + signal.SIGKILL or any(_TRANSIENT_TEXT.search(text) for text in tail)
        return f"{what} ended with status {ended.status}{_operation(tail)}.{_quote(tail)}", transient
    return _check_neff(folder / neff, what, tail), False


def _check_neff(path: Path, what: str, tail: list[str]) -> str | None:
    from .. import _C

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return f"{what} ended well but wrote no NEFF.{_quote(tail)}"
    try:
        _C.neff_info(content, verify_digest=True)
    except (ValueError, RuntimeError) as error:
        return f"{what} ended well, but what it wrote ({len(content)} bytes) is no NEFF: {error}.{_quote(tail)}"
    return None


def _operation(tail: list[str]) -> str:
    """Return a phrase with the operation that the compiler's error names, empty when it names none."""
    for text in tail:
        match = _OPERATION.search(text) if _ERROR_LINE.search(text) else None
        if match is not None:
            return f" at the operation {match.group(0)}"
    return ""


def _last_lines(text: str) -> list[str]:
    return [line[:_MOST_LINE] for line in text.strip().splitlines()[-_TAIL_LINES:]]


def _quote(tail: list[str]) -> str:
    return " Its last lines:\n" + "\n".join(tail) if tail else " It printed nothing."


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (_TAIL_LINES * _MOST_LINE)))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _cut(log: Path) -> None:
    """Keep the beginning of a log that grew past the limit."""
    try:
        if log.stat().st_size > _MOST_LOG:
            os.truncate(log, _MOST_LOG)
            with log.open("ab") as file:
                file.write(f"\n(what followed was left out: {_MOST_LOG >> 20} MiB are kept)\n".encode())
    except FileNotFoundError:
        pass
