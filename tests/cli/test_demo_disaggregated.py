# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite demo --disaggregated`: the two processes, their report, and a prefill process that fails."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the demo's extra is not installed")

from libtorch_neuronx_lite.cli.demo import disaggregated, prefill_process
from libtorch_neuronx_lite.cli.demo.disaggregated import DisaggregatedReport, PrefillProcess
from libtorch_neuronx_lite.cli.demo.report import DemoReport, print_table
from libtorch_neuronx_lite.cli.errors import CommandError

ADDED_KEYS = {
    "transfer_ms", "transfer_gb_per_s", "transfer_bytes", "provider", "ttft_ms", "inter_token_ms",
    "one_process_tokens", "one_process_identical",
}  # fmt: skip


def report(**changes: Any) -> DisaggregatedReport:
    values: dict[str, Any] = {
        "model": "m", "dtype": "bfloat16", "device": "neuron:0", "runtime": "host", "prompt": "p", "prompt_tokens": 37,
        "tokens": [1, 2], "text": "t", "ended": True, "agreement": "identical", "tokens_identical": 2,
        "first_divergence": None, "tied_positions": [], "logit_error": 0.01, "logit_tolerance": 0.1,
        "prefill_bucket": 128, "cache_length": 256, "load_s": 1.0, "compile_s": 2.0, "compile_tracing_s": 1.0,
        "compile_after_aot_s": 1.0, "neff_bytes": {}, "prefill_ms": 50.0, "decode_tokens_per_s": 40.0,
        "cpu_eager_prefill_ms": 1.0, "cpu_eager_tokens_per_s": 3.0, "threads": 2, "device_memory_bytes": 1 << 20,
        "eager_fallbacks": 0, "transfer_ms": 0.5, "transfer_gb_per_s": 1.7, "transfer_bytes": 852480, "provider": "cma",
        "ttft_ms": 55.0, "inter_token_ms": 25.0, "one_process_tokens": [1, 2], "one_process_identical": True,
    }  # fmt: skip
    return DisaggregatedReport(**(values | changes))


def test_the_keys_are_the_plain_ones_and_these() -> None:
    plain = {field.name for field in fields(DemoReport)}
    assert set(report().to_json()) == plain | ADDED_KEYS
    assert json.loads(json.dumps(report().to_json()))["provider"] == "cma"


def test_other_ids_than_one_process_gives_are_a_failure() -> None:
    assert report().passed
    assert not report(one_process_identical=False).passed
    assert not report(agreement="diverges").passed


def test_the_table_shows_both_processes() -> None:
    stream = io.StringIO()
    print_table(report(), stream)
    shown = stream.getvalue()
    for text in ("identical", "0.50 ms, 0.85 MB, 1.70 GB/s", "cma", "55 ms", "25.0 ms", "agreement with CPU eager"):
        assert text in shown


@pytest.mark.parametrize(("length", "tokens"), [(256, 16), (24, 8), (17, 1)])
def test_blocks_divide_the_cache(length: int, tokens: int) -> None:
    assert prefill_process.block_tokens(length) == tokens


def test_a_prefill_process_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = argparse.Namespace(
        dtype="bfloat16", device="neuron:9", prefill_bucket=8, cache_length=16, random_weights=True
    )
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CommandError, match="the prefill process ended"), PrefillProcess(arguments) as prefill:
        prefill.ready()


def test_a_silent_prefill_process_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nwhile read line; do :; done\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(disaggregated, "_READY_SECONDS", 0.2)
    arguments = argparse.Namespace(
        dtype="bfloat16", device="neuron:0", prefill_bucket=8, cache_length=16, random_weights=True
    )
    with PrefillProcess(arguments) as prefill, pytest.raises(CommandError, match=r"has not answered within 0\.2 s"):
        prefill.ready()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_processes_give_the_ids_of_one() -> None:
    command = [
        sys.executable, "-m", "libtorch_neuronx_lite.cli", "demo", "--disaggregated", "--random-weights", "--json",
        "--dtype", "float32", "--max-new-tokens", "6",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["one_process_identical"] is True
    assert result["tokens"] == result["one_process_tokens"]
    assert len(result["tokens"]) == 6
    assert result["agreement"] == "identical"
    assert result["provider"] in ("shm", "cma", "tcp")
    # K and V of 30 layers, 3 heads of 64 floats, for each token of the prompt.
    assert result["transfer_bytes"] == result["prompt_tokens"] * 30 * 2 * 3 * 64 * 4
    assert result["transfer_ms"] > 0
    assert result["ttft_ms"] >= result["prefill_ms"]
