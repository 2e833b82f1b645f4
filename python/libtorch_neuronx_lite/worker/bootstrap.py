# SPDX-License-Identifier: Apache-2.0
"""The worker process: run by path, so that the package's own ``__init__`` (and torch with it) is never imported.

A stub takes the package's place in ``sys.modules``; its submodules then import under the names they have in the parent.
The first frame is the parent's greeting (search path, jobs); each later one is a request and gets one answer.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = "libtorch_neuronx_lite"


def _install_stub_package() -> None:
    stub = types.ModuleType(PACKAGE)
    stub.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules[PACKAGE] = stub


def _describe(error: BaseException) -> dict[str, Any]:
    from libtorch_neuronx_lite.worker.errors import JobError

    trace = "".join(traceback.format_exception(error))
    if isinstance(error, JobError):
        return {
            "kind": error.kind,
            "message": error.detail,
            "op": error.op,
            "location": error.location,
            "traceback": trace,
        }
    location = None
    for diagnostic in getattr(error, "error_diagnostics", ()):  # torch_mlir.ir.MLIRError
        location = str(diagnostic.location)
        break
    return {"kind": type(error).__name__, "message": str(error), "op": None, "location": location, "traceback": trace}


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    # The pipes move away from 0 and 1, so that a print from native code cannot land inside a frame.
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is expected here: it is reported, not dumped
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    _install_stub_package()
    from libtorch_neuronx_lite.worker.protocol import read_frame, write_frame

    greeting, _ = read_frame(requests)
    sys.path[:] = greeting["sys_path"]
    jobs: dict[str, str] = greeting["jobs"]
    write_frame(answers, {"status": "ready", "pid": os.getpid()}, {})

    while True:
        try:
            request, blobs = read_frame(requests)
        except EOFError:
            return
        # If the parent is killed while native code runs here, nobody is left to enforce the limit: the kernel does.
        signal.alarm(int(request["timeout"]) + 10)
        answer: dict[str, Any]
        try:
            module, _, function = jobs[request["job"]].partition(":")
            call: Callable[..., Any] = getattr(importlib.import_module(module), function)
            results, info = call(blobs, request["params"])
            answer = {"status": "ok", "info": info}
        except Exception as error:  # the edge of the process: every error becomes an answer
            results = {}
            answer = {"status": "error", **_describe(error)}
        signal.alarm(0)
        write_frame(answers, answer, results)


if __name__ == "__main__":
    main()
