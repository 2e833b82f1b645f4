# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.kv`: its rows, its ratios, and that every mover of this machine moved the right bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW_KEYS = {
    "peer", "op", "block_bytes", "scattered", "gbps_median", "gbps_min", "gbps_max", "p50_us", "p99_us",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_benchmark_prints_rows_and_ratios() -> None:
    command = [sys.executable, "-m", "benchmarks.kv", "--json", "--rounds", "1", "--latency-rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr  # wrong bytes are an error there
    result = json.loads(done.stdout.splitlines()[-1])
    assert {frozenset(row) for row in result["rows"]} == {frozenset(ROW_KEYS)}
    reads = {(row["peer"], row["block_bytes"]) for row in result["rows"] if row["op"] == "read"}
    for peer in ("kv shm", "kv tcp", "process_vm_readv", "memcpy"):
        assert {(peer, size) for size in (256, 4096, 65536, 1 << 20)} <= reads
    for row in result["rows"]:
        if row["op"] == "read":
            assert 0 < row["gbps_min"] <= row["gbps_median"] <= row["gbps_max"]
        assert 0 < row["p50_us"] <= row["p99_us"]
    assert result["ratios"]["bytes that land after release"] == 0
    assert result["ratios"]["plan and post of 16,384 runs"] > 0
    assert "1 MiB blocks, times memcpy" in result["ratios"]
    assert set(result["absent"]) <= {"nixl", "nixl tcp", "mooncake tcp"}
