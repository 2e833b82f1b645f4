# SPDX-License-Identifier: Apache-2.0
"""What a job can end in other than a result: it refused its input, or its process died."""

from __future__ import annotations

import signal
from pathlib import Path

from libtorch_neuronx_lite._errors import NeuronError


class JobError(NeuronError):
    """A job refused its input. Raised inside the worker and raised again, field by field, in the parent.

    Attributes:
        kind: a short stable word, such as ``unsupported-op``, ``invalid-module`` or the name of the exception's type.
        detail: what is wrong, with the value, the limit and the remedy.
        op: the operation at fault, such as ``stablehlo.custom_call``, or None.
        location: where the operation comes from (file, line, FX node), or None.
        traceback: the worker's traceback, for the log.
        repro: the file that replays the job, or None when the caller named no folder.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        op: str | None = None,
        location: str | None = None,
        traceback: str = "",
        repro: Path | None = None,
    ) -> None:
        self.kind, self.detail, self.op, self.location = kind, detail, op, location
        self.traceback, self.repro = traceback, repro
        text = detail
        if op is not None and op not in detail:
            text = f"{op}: {text}"
        if location and location not in detail:
            text += f" (at {location})"
        if repro is not None:
            text += f"; repro file: {repro}"
        super().__init__(text)


class WorkerError(NeuronError):
    """A worker process died, hung or outgrew its memory limit while it ran a job.

    Attributes:
        reason: ``died``, ``timeout``, ``memory`` or ``start``.
        exit_signal: the signal that ended the process, or None.
        exit_code: its exit status when it ended by itself, or None.
        stderr_tail: the last lines that it wrote to stderr.
        repro: the file that replays the job, or None when the caller named no folder.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        exit_signal: int | None = None,
        exit_code: int | None = None,
        stderr_tail: str = "",
        repro: Path | None = None,
    ) -> None:
        self.reason, self.exit_signal, self.exit_code = reason, exit_signal, exit_code
        self.stderr_tail, self.repro = stderr_tail, repro
        text = message
        if repro is not None:
            text += f"; repro file: {repro}"
        if stderr_tail:
            text += f"\nlast lines of its stderr:\n{stderr_tail}"
        super().__init__(text)


def signal_name(number: int) -> str:
    """Return ``SIGABRT (6)`` for 6, and the number alone for one that this platform does not name."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return str(number)
