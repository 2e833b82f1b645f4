# SPDX-License-Identifier: Apache-2.0
"""The demo's progress on a terminal and in a log, and its closing table."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

pytest.importorskip("rich", reason="the demo's extra is not installed")

from libtorch_neuronx_lite.cli.demo.progress import StageProgress
from libtorch_neuronx_lite.cli.demo.report import DemoReport, print_table


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


REPORT = DemoReport(
    model="SmolLM2", dtype="bfloat16", device="neuron:0", runtime="host", prompt="?", prompt_tokens=37,
    tokens=[1, 2, 3], text="a b c", ended=True, agreement="identical", tokens_identical=3, first_divergence=None,
    tied_positions=[], logit_error=0.01, logit_tolerance=0.06, prefill_bucket=128, cache_length=256, load_s=1.5,
    compile_s=30.0, compile_tracing_s=20.0, compile_after_aot_s=10.0,
    neff_bytes={"prefill": 560_000, "decode": 510_000}, prefill_ms=140.0, decode_tokens_per_s=20.0,
    cpu_eager_prefill_ms=90.0, cpu_eager_tokens_per_s=15.0, threads=2, device_memory_bytes=2**29, eager_fallbacks=0,
)  # fmt: skip


def _table(**changes: Any) -> str:
    stream = io.StringIO()
    print_table(dataclasses.replace(REPORT, **changes), stream)
    return stream.getvalue()


def test_a_log_gets_one_line_per_stage() -> None:
    stream = io.StringIO()
    with StageProgress(2, stream) as progress:
        with progress.stage("load"):
            pass
        with progress.stage("compile"):
            assert stream.getvalue() == "load: 0.0 s\n"
    assert stream.getvalue() == "load: 0.0 s\ncompile: 0.0 s\n"
    assert list(progress.seconds) == ["load", "compile"]


def test_a_terminal_gets_a_bar() -> None:
    stream = _Terminal()
    with StageProgress(2, stream) as progress, progress.stage("compile decode"):
        pass
    text = stream.getvalue()
    assert "compile decode" in text
    assert "0/2" in text or "1/2" in text


def test_a_failing_stage_is_not_a_finished_one() -> None:
    stream = io.StringIO()
    with pytest.raises(RuntimeError), StageProgress(1, stream) as progress, progress.stage("compile"):
        raise RuntimeError
    assert stream.getvalue() == ""
    assert progress.seconds == {}


def test_the_table_shows_every_measure() -> None:
    text = _table()
    for part in (
        "identical, 3 of 3 tokens", "30.0 s", "20.0 s", "10.0 s", "prefill 0.56 MB, decode 0.51 MB", "140 ms",
        "20.0 tokens/s", "15.0 tokens/s", "(2 threads)", "512 MiB",
    ):  # fmt: skip
        assert part in text


def test_the_table_says_where_an_answer_differs() -> None:
    assert "ties, 2 of 3 tokens identical, first at token 1" in _table(
        agreement="ties", tokens_identical=2, first_divergence=1
    )
    assert "DIVERGES, 0 of 3 tokens identical, first at token 0" in _table(
        agreement="diverges", tokens_identical=0, first_divergence=0
    )


def test_one_token_has_no_rate() -> None:
    assert _table(decode_tokens_per_s=None, cpu_eager_tokens_per_s=None).count("not measured: one token") == 2


@pytest.mark.parametrize(
    ("agreement", "dtype", "passed"),
    [("identical", "float32", True), ("identical", "bfloat16", True), ("ties", "bfloat16", True),
     ("ties", "float32", False), ("diverges", "bfloat16", False)],
)  # fmt: skip
def test_what_passes(agreement: str, dtype: str, passed: bool) -> None:
    report = dataclasses.replace(REPORT, agreement=agreement, dtype=dtype)
    assert report.passed is passed
    assert json.loads(json.dumps(report.to_json()))["agreement"] == agreement
