# SPDX-License-Identifier: Apache-2.0
"""The disaggregated example: right answers, workers lost in the middle, no hang, no leaked block."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "disaggregated"


def test_requests_survive_lost_workers_and_no_block_is_lost() -> None:
    command = [sys.executable, "-W", "error", str(FOLDER / "router.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("12 requests answered; free blocks {'prefill-0': 64, 'prefill-1': 64, 'decode-0': 64")
    assert lines[1].startswith("prefill-0 and decode-1 killed: all answers are the same")
    assert lines[2].count("64") == len(lines[2].split(": ")) - 1


def test_every_file_is_short_enough_to_copy() -> None:
    lengths = {path.name: path.read_text().count("\n") for path in FOLDER.glob("*.py")}
    assert {"prefill_worker.py", "decode_worker.py", "router.py"} <= set(lengths)
    assert max(lengths.values()) < 200, lengths
