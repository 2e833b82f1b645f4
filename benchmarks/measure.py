# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing, medians with their spread, and one way to print them for every benchmark."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one thing; `unit` is for print only."""

    name: str
    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The 25th and 75th percentile; both the value itself when there is only one."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Verdict:
    """A number that the project promises: `value` is held against `limit`."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Result:
    """What one benchmark prints."""

    title: str
    samples: list[Sample] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def show(self, as_json: bool) -> None:
        """Prints the result for people, or as one JSON object."""
        if as_json:
            print(json.dumps(self._as_data()))
            return
        print(self.title)
        for sample in self.samples:
            low, high = sample.quartiles
            print(
                f"  {sample.name:<44} {sample.median:>10.2f} {sample.unit:<9} "
                f"[{low:.2f} .. {high:.2f}, n={len(sample.values)}]"
            )
        for verdict in self.verdicts:
            bound = "at least" if verdict.at_least else "at most"
            state = "met" if verdict.met else "NOT MET"
            print(f"  {verdict.name:<44} {verdict.value:>10.2f} {verdict.unit:<9} {bound} {verdict.limit:g}: {state}")

    def _as_data(self) -> dict[str, object]:
        return {
            "title": self.title,
            "samples": {
                s.name: {"median": s.median, "quartiles": s.quartiles, "unit": s.unit, "values": s.values}
                for s in self.samples
            },
            "verdicts": {
                v.name: {"value": v.value, "limit": v.limit, "at_least": v.at_least, "unit": v.unit, "met": v.met}
                for v in self.verdicts
            },
        }


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def interleave(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Runs every case once per round, in order, so that a slow spell of the machine meets all of them."""
    values: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            values[name].append(case())
    return {name: tuple(measured) for name, measured in values.items()}


def microseconds_per_call(call: Callable[[], object], calls: int) -> float:
    """Mean time of one call in a tight loop, in microseconds."""
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls / 1000


def differences(values: Sequence[float], peer: Sequence[float]) -> tuple[float, ...]:
    """value - peer of each round: what drifts over the run drops out."""
    return tuple(a - b for a, b in zip(values, peer, strict=True))
