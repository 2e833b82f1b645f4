# SPDX-License-Identifier: Apache-2.0
"""A stand-in for neuronx-cc: the same command line, and whatever behaviour its environment asks for.

STAND_IN is a comma-separated list, one behaviour for each run (the last one repeats): `ok`, `slow`, `fail`, `oom`,
`killed`, `abort`, `garbage`, `partial`, `silent`, `loud`, `hang`, `daemon`. STAND_IN_STATE is a folder of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VERSION = "NeuronX Compiler version 2.99.1"


def install(folder: Path) -> Path:
    """Make an executable `neuronx-cc` in a folder."""
    program = folder / "neuronx-cc"
    program.write_text(f"#!{sys.executable} -IS\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    program.chmod(0o755)
    return program


def _neff(name: str) -> bytes:
    sys.path.insert(0, os.environ["STAND_IN_HOSTCC"])
    from neff import write_neff  # the container's writer, alone: no package is imported

    signature = {"version": 1, "inputs": [], "outputs": []}
    files = {"neff.json": json.dumps({"version": 1, "target": "trn2"}), "sg00/def.json": json.dumps(signature)}
    return bytes(write_neff(name, {path: text.encode() for path, text in files.items()}, build_version="2.99.1"))


def _behaviour(state: Path) -> str:
    chosen = os.environ.get("STAND_IN", "ok").split(",")
    runs = len(list(state.glob("run.*")))
    (state / f"run.{runs}").write_text(json.dumps({"argv": sys.argv, "pid": os.getpid(), "cwd": os.getcwd()}))
    return chosen[min(runs, len(chosen) - 1)]


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return 0
    arguments = dict(zip(sys.argv, sys.argv[1:], strict=False))
    output, log = Path(arguments["--output"]), Path(arguments["--logfile"])
    assert sys.argv[1] == "compile"
    assert Path(sys.argv[2]).read_text().startswith("module")
    state = Path(os.environ["STAND_IN_STATE"])
    behaviour = _behaviour(state)
    log.write_text(f"the log of a run that is to be '{behaviour}'\n")
    print(f"compiling, to be '{behaviour}'", flush=True)
    if behaviour == "slow":
        time.sleep(0.5)
    elif behaviour == "fail":
        print("ERROR: [NCC_EVRF007] op 'stablehlo.fft' is not supported on this target", file=sys.stderr)
        return 70
    elif behaviour == "oom":
        print("OSError: [Errno 12] Cannot allocate memory", file=sys.stderr)
        return 1
    elif behaviour in ("killed", "abort"):
        output.write_bytes(b"NEFF in part")
        os.kill(os.getpid(), signal.SIGKILL if behaviour == "killed" else signal.SIGABRT)
    elif behaviour == "garbage":
        output.write_bytes(os.urandom(4096))
        return 0
    elif behaviour == "partial":
        output.write_bytes(_neff("graph")[:1500])
        return 0
    elif behaviour == "silent":
        return 0
    elif behaviour == "loud":
        for _ in range(64):
            os.write(1, b"x" * 99 + b"\n" + (b"line of output\n" * 20_000))
        with log.open("ab") as file:
            file.truncate(100 << 20)
        print("the last line", flush=True)
    elif behaviour in ("hang", "daemon"):
        # A worker of its own session, as a compiler's daemon would be, which outlives its parent unless it is found.
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (state / "child").write_text(str(child.pid))
        if behaviour == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
    output.write_bytes(_neff("graph"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
