# SPDX-License-Identifier: Apache-2.0
"""What the user sees while the demo loads and compiles: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class StageProgress:
    """Progress over a known number of stages, on `stream` (stderr: stdout belongs to the answer).

    `seconds` holds the duration of every finished stage by its name.
    """

    def __init__(self, stages: int, stream: TextIO | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._stream = stream or sys.stderr
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<34}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(file=self._stream),
                transient=True,
            )
            self._task = self._bar.add_task("", total=stages)

    def __enter__(self) -> StageProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows `name` while the body runs; an exception passes through and leaves the stage unfinished."""
        if self._bar:
            self._bar.update(self._task, description=name)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        if self._bar:
            self._bar.advance(self._task)
        else:
            print(f"{name}: {self.seconds[name]:.1f} s", file=self._stream, flush=True)
