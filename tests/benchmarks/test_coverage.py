# SPDX-License-Identifier: Apache-2.0
"""The coverage run: outcomes of real cases, a worker that dies or hangs, resuming, and the counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import coverage, coverage_case

PASSED = {"op": "add", "dtype": "float32", "group": "core", "outcome": "passed", "detail": ""}


@pytest.mark.parametrize(
    ("name", "dtype", "group", "outcome"),
    [
        ("add", "float32", "core", "passed"),
        ("linalg.inv", "float32", "linalg", "refused"),
        ("nonzero", "int64", "data-dependent", "refused"),
        ("rand_like", "float32", "core", "passed"),  # random: only dtype and shape can be compared
    ],
)
def test_outcome_of_a_case(name: str, dtype: str, group: str, outcome: str) -> None:
    found = coverage_case.run_case(name, dtype, "neuron", 1)
    assert (found.group, found.outcome) == (group, outcome), found.detail


def test_a_wrong_value_is_seen() -> None:
    assert coverage_case._difference(torch.ones(2), torch.zeros(2), True)
    assert not coverage_case._difference(torch.ones(2), torch.zeros(2), False)
    assert coverage_case._difference(torch.ones(2), torch.ones(2).double(), False)


def test_a_dead_worker_costs_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["the process ended with status -6", PASSED, "no answer within 1 s"])

    class Worker:
        def __init__(self, backend: str, samples: int) -> None:
            pass

        def run(self, case: coverage.Case, seconds: float) -> dict[str, str] | str:
            return next(answers)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(coverage, "_Worker", Worker)
    found = list(coverage.run_cases([("a", "bool"), ("add", "float32"), ("b", "bool")], "neuron", 1, 1.0))
    assert [outcome["outcome"] for outcome in found] == ["crashed", "passed", "hung"]


def test_a_line_that_was_cut_off_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text('{"op": "add", "dtype": "float32", "group": "core", "outcome": "passed"}\n{"op": "sub", "dt')
    assert set(coverage.outcomes_of(file)) == {("add", "float32")}


def test_shares_count_operators_whose_peer_passes() -> None:
    def outcome(op: str, result: str, group: str = "core", dtype: str = "float32") -> dict[str, str]:
        return {"op": op, "dtype": dtype, "group": group, "outcome": result, "detail": ""}

    rows = [
        outcome("a", "passed"),
        outcome("a", "refused", dtype="bool"),
        outcome("b", "passed"),
        outcome("c", "passed", "fft"),
    ]
    rows += [outcome("d", "refused"), outcome("e", "inapplicable")]
    ours = {(row["op"], row["dtype"]): row for row in rows}
    peer = {("d", "float32"): outcome("d", "failed")}
    found = coverage.shares(ours, peer)
    assert found["core"] == {"passed": 1, "of": 2}
    assert found["all"] == {"passed": 2, "of": 3}
    assert "| a | core | yes |  |  | refused |" in coverage.table(ours, found)
