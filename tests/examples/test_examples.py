# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it stands, with warnings as errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path) -> None:
    result = subprocess.run([sys.executable, "-W", "error", str(example)], capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr
    assert "neuron:0" in result.stdout or "same address: True" in result.stdout
