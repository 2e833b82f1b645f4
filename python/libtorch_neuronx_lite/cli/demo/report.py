# SPDX-License-Identifier: Apache-2.0
"""The result of a demo run: the object of `--json` and the table at its end."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class DemoReport:
    """Everything one run measured. Field names are the keys of `--json`; times in the unit of their suffix."""

    model: str
    dtype: str
    device: str
    runtime: str
    prompt: str
    prompt_tokens: int
    tokens: list[int]
    text: str
    ended: bool  # the model ended its answer; otherwise --max-new-tokens did
    agreement: str  # identical, ties, diverges
    tokens_identical: int
    first_divergence: int | None
    tied_positions: list[int]
    logit_error: float
    logit_tolerance: float
    prefill_bucket: int
    cache_length: int
    load_s: float
    compile_s: float
    compile_tracing_s: float
    compile_after_aot_s: float
    neff_bytes: dict[str, int]
    prefill_ms: float
    decode_tokens_per_s: float | None
    cpu_eager_prefill_ms: float
    cpu_eager_tokens_per_s: float | None
    threads: int
    device_memory_bytes: int
    eager_fallbacks: int  # eager operators that ran on the CPU while the answer was generated

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)

    @property
    def passed(self) -> bool:
        """Whether the answer agrees with CPU eager as far as its dtype allows."""
        return self.agreement == "identical" or (self.agreement == "ties" and self.dtype == "bfloat16")

    def rows(self) -> list[tuple[str, str]]:
        """The lines of the table."""
        rate = "{:.1f} tokens/s".format
        unmeasured = "not measured: one token"
        neffs = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in self.neff_bytes.items())
        return [
            ("agreement with CPU eager", _verdict(self)),
            ("logit error (limit)", f"{self.logit_error:.2g} ({self.logit_tolerance:g}) of the largest logit"),
            ("load", f"{self.load_s:.1f} s"),
            ("compile", f"{self.compile_s:.1f} s"),
            ("  tracing", f"{self.compile_tracing_s:.1f} s"),
            ("  after AOTAutograd", f"{self.compile_after_aot_s:.1f} s"),
            ("NEFF sizes", neffs or "none"),
            (
                f"prefill ({self.prompt_tokens} tokens in a bucket of {self.prefill_bucket})",
                f"{self.prefill_ms:.0f} ms",
            ),
            ("decode", rate(self.decode_tokens_per_s) if self.decode_tokens_per_s else unmeasured),
            (
                f"CPU eager decode ({self.threads} threads)",
                rate(self.cpu_eager_tokens_per_s) if self.cpu_eager_tokens_per_s else unmeasured,
            ),
            ("device memory in use", f"{self.device_memory_bytes / 2**20:.0f} MiB"),
        ]


def print_table(report: DemoReport, stream: TextIO | None = None) -> None:
    """Prints the table that ends the demo, on stdout by default."""
    table = Table(
        title=f"{report.model}, {report.dtype}, {report.device} ({report.runtime} runtime)", title_justify="left"
    )
    table.add_column("measure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for name, value in report.rows():
        table.add_row(name, value)
    Console(file=stream or sys.stdout, width=None if (stream or sys.stdout).isatty() else 100).print(table)


def _verdict(report: DemoReport) -> str:
    count = f"{report.tokens_identical} of {len(report.tokens)} tokens"
    if report.agreement == "identical":
        return f"identical, {count}"
    where = f"first at token {report.first_divergence}"
    if report.agreement == "ties":
        return f"ties, {count} identical, {where}"
    return f"DIVERGES, {count} identical, {where}"
