# SPDX-License-Identifier: Apache-2.0
"""``python -m libtorch_neuronx_lite.hostcc compile GRAPH --target host --output F``: neuronx-cc's command line.

Exit status 0: the NEFF is written. 1: the graph cannot be compiled. 2: the command line is wrong. 70: the compiler
itself died. The last line on stderr says which, as ``ERROR: ...`` with the op and its place in the model.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from libtorch_neuronx_lite.hostcc import DEFAULT_TIMEOUT, compile_stablehlo, compiler_version
from libtorch_neuronx_lite.worker.errors import JobError, WorkerError

EXIT_INVALID, EXIT_USAGE, EXIT_CRASH = 1, 2, 70

# Options of neuronx-cc that change its code generation for the chip. They are accepted, so that one command line serves
# both compilers, recorded in the log, and have no effect here. True: the option takes a value.
IGNORED = {
    "--auto-cast": True,
    "--auto-cast-type": True,
    "--distribution-strategy": True,
    "--enable-experimental-O1": False,
    "--enable-fast-context-switch": False,
    "--enable-fast-loading-neuron-binaries": False,
    "--enable-mixed-precision-accumulation": False,
    "--enable-saturate-infinity": False,
    "--hbm-scratchpad-page-size": True,
    "--hlo2tensorizer-options": True,
    "--internal-hlo2tensorizer-options": True,
    "--internal-backend-options": True,
    "--jobs": True,
    "--lnc": True,
    "--logical-nc-config": True,
    "--model-type": True,
    "--optlevel": True,
    "--tensorizer-options": True,
    "--verbose": True,
    "-O": True,
    "-O1": False,
    "-O2": False,
    "-O3": False,
    "-j": True,
}

_log = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hostcc", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"hostcc {compiler_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    compile_ = commands.add_parser("compile", allow_abbrev=False, help="compile a StableHLO module to a NEFF")
    compile_.add_argument("graph", type=Path, help="StableHLO: MLIR bytecode, a portable artifact, or text")
    compile_.add_argument("--framework", choices=["XLA"], default="XLA")
    compile_.add_argument("--target", choices=["host"], default="host")
    compile_.add_argument("--output", type=Path, default=None, help="default: GRAPH with the suffix .neff")
    compile_.add_argument("--logfile", type=Path, default=None)
    compile_.add_argument("--name", default=None, help="the graph's name; default: the file's")
    compile_.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds")
    return parser


def split_ignored(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for this compiler, and neuronx-cc's own that have no effect here."""
    own: list[str] = []
    ignored: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        name, has_value, _ = argument.partition("=")
        takes_value = IGNORED.get(name)
        if takes_value is None:
            own.append(argument)
        else:
            ignored.append(argument)
            if takes_value and not has_value and position + 1 < len(arguments):
                position += 1
                ignored.append(arguments[position])
        position += 1
    return own, ignored


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    own, ignored = split_ignored(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(own)
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code or 0)
    handler: logging.Handler = (
        logging.FileHandler(options.logfile) if options.logfile is not None else logging.NullHandler()
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        return _compile(options, ignored)
    finally:
        _log.removeHandler(handler)
        handler.close()


def _compile(options: argparse.Namespace, ignored: list[str]) -> int:
    _log.info("hostcc %s: compile %s for target %s", compiler_version(), options.graph, options.target)
    if ignored:
        _log.info("options without effect on the target host: %s", " ".join(ignored))
    output: Path = options.output or options.graph.with_suffix(".neff")
    started = time.perf_counter()
    try:
        module = options.graph.read_bytes()
        neff = compile_stablehlo(module, name=options.name or options.graph.stem, timeout=options.timeout)
        # Whole or not at all: a reader never sees half a NEFF.
        partial = output.with_name(f".{output.name}.{os.getpid()}")
        partial.write_bytes(neff)
        partial.replace(output)
    except OSError as error:
        return _fail(EXIT_INVALID, f"{error.filename or options.graph}: {error.strerror or error}")
    except JobError as error:
        return _fail(EXIT_INVALID, str(error), error.traceback)
    except WorkerError as error:
        return _fail(EXIT_CRASH, str(error))
    _log.info("wrote %s: %d bytes in %.3f s", output, len(neff), time.perf_counter() - started)
    print("Compiler status PASS", file=sys.stderr)
    return 0


def _fail(status: int, message: str, detail: str = "") -> int:
    if detail:
        _log.error("%s", detail)
    _log.error("%s", message)
    lines = message.strip().splitlines()
    for line in lines[1:]:
        print(line, file=sys.stderr)
    print("Compiler status FAIL", file=sys.stderr)
    print(f"ERROR: {lines[0]}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
