# SPDX-License-Identifier: Apache-2.0
"""One connector-like script over the facade, and over NIXL itself where it is installed: the same results."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("nixl_script.py")
EXPECTED = {
    "unknown before": False,
    "name": "target",
    "type of the name": "bytes",
    "known": True,
    "name at the target": "initiator",
    "read": "DONE",
    "read is right": True,
    "rest is untouched": True,
    "bytes": 32 * 4096,
    "telemetry types": ["int"] * 4,
    "notification of the read": {"initiator": ["read is over"]},
    "strided read": "DONE",
    "strided read is right": True,
    "write": ["DONE", "DONE"],
    "notifications of the writes": 2,
    "write is right": True,
    "hello": {"initiator": ["hello"]},
    "back": {"target": ["back"]},
    "outside": "nixlNotFoundError",
    "no such agent": "nixlNotFoundError",
    "bad index": "nixlInvalidParamError",
    "known after removal": False,
    "exit code of the target": 0,
}


def run(which: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run([sys.executable, str(SCRIPT), which], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stderr


def test_the_script_over_the_facade() -> None:
    result, errors = run("compat")
    assert result == EXPECTED
    assert errors.count("backend UCX: accepted as a name") == 2  # once in each of the two processes


@pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12")), reason="nixl-cu12 is not installed"
)
def test_the_script_over_nixl() -> None:
    assert run("nixl")[0] == EXPECTED
