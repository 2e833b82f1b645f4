# SPDX-License-Identifier: Apache-2.0
"""What compiling cost: the time after AOTAutograd handed a graph over, and the size of each NEFF."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libtorch_neuronx_lite.compile import backend
from libtorch_neuronx_lite.compile.entry import Artifact


@dataclass
class CompileRecord:
    """Sums over the graphs that were compiled while `recording` was active."""

    graphs: int = 0
    after_aot_seconds: float = 0.0
    neff_bytes: int = 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[CompileRecord]:
        """Watches the two functions of `compile.backend` that callers may replace: both are looked up at each use."""
        compile_graph, build_executable = backend.compile, backend.build_executable

        def timed_compile(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return compile_graph(*arguments, **keywords)
            finally:
                self.graphs += 1
                self.after_aot_seconds += time.perf_counter() - started

        def measured_build(**keywords: Any) -> Artifact:
            artifact = build_executable(**keywords)
            self.neff_bytes += len(artifact.neff)
            return artifact

        backend.compile, backend.build_executable = timed_compile, measured_build
        try:
            yield self
        finally:
            backend.compile, backend.build_executable = compile_graph, build_executable
