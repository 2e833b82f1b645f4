# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of benchmarks/measure.py: what is printed there must be right, whatever the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.measure import Result, Sample, Verdict, differences, interleave


def test_interleave_takes_turns() -> None:
    order: list[str] = []

    def case(name: str, value: float) -> float:
        order.append(name)
        return value

    values = interleave({"a": lambda: case("a", 1.0), "b": lambda: case("b", 3.0)}, 3)
    assert order == ["a", "b"] * 3
    assert values == {"a": (1.0,) * 3, "b": (3.0,) * 3}
    assert differences(values["b"], values["a"]) == (2.0,) * 3


def test_differences_need_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        differences([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "met"),
    [(1.0, 2.0, False, True), (2.0, 2.0, False, True), (3.0, 2.0, False, False), (3.0, 2.0, True, True),
     (1.0, 2.0, True, False)],
)  # fmt: skip
def test_verdict(value: float, limit: float, at_least: bool, met: bool) -> None:
    assert Verdict("x", value, limit, "s", at_least).met is met


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result("title", [Sample("speed", (1.0, 2.0, 9.0), "us")], [Verdict("speed", 2.0, 1.5, "us")])
    result.show(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["samples"]["speed"] == {"median": 2.0, "quartiles": [1.5, 5.5], "unit": "us", "values": [1.0, 2.0, 9.0]}
    assert data["verdicts"]["speed"]["met"] is False
    result.show(as_json=False)
    text = capsys.readouterr().out
    assert "2.00 us" in text
    assert "NOT MET" in text
    assert Sample("one", (4.0,), "s").quartiles == (4.0, 4.0)
