# SPDX-License-Identifier: Apache-2.0
"""An interpreter of its own for one piece of code: what happens at import, at exit, after a fork, or out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


class FreshPython:
    """A call runs the code with warnings as errors and fails the test, showing stderr, unless it exits with 0."""

    def __call__(self, code: str, *, path: Path | None = None, timeout: float = 120, **environment: str) -> str:
        result = self.run(code, path=path, timeout=timeout, **environment)
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def run(
        self, code: str, *, path: Path | None = None, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The same without the check. `path` is put in front of PYTHONPATH."""
        variables = {**os.environ, **environment}
        if path is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), variables.get("PYTHONPATH")]))
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
