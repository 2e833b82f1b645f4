# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's operator database through torch.compile, on the host target or with Inductor, and counts what passes.

Cases run in worker processes, so that one which crashes or hangs costs only itself. Each outcome is appended to a
file of JSON lines at once; a run that is started again with the same file goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

DATA = Path(__file__).parent / "data"
TABLE = Path(__file__).parent.parent / "docs" / "operators.md"
OUTSIDE = ("linalg", "fft", "sparse", "jiterator", "data-dependent")
CORE_LIMIT, ALL_LIMIT = 0.95, 0.85

Case = tuple[str, str]
Outcomes = dict[Case, dict[str, str]]


def outcomes_of(file: Path) -> Outcomes:
    """Read a file of outcomes; a line that was cut off by a kill is ignored and its case runs again."""
    found: Outcomes = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                outcome = json.loads(line)
                found[outcome["op"], outcome["dtype"]] = outcome
            except (ValueError, KeyError):
                continue
    return found


class _Worker:
    """A process that runs cases one after the other and answers each with a line."""

    def __init__(self, backend: str, samples: int) -> None:
        command = [sys.executable, "-m", "benchmarks.coverage", "--worker", "--backend", backend]
        command += ["--samples", str(samples)]
        environment = {**os.environ, "NEURON_LIBTORCH_EAGER_FALLBACK": "allow", "PYTHONWARNINGS": "ignore"}
        environment["NEURON_LIBTORCH_DISABLE_COMPILE_CACHE"] = "1"
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def run(self, case: Case, seconds: float) -> dict[str, str] | str:
        """Return the outcome, or why there is none; after that the worker is of no use any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return f"no answer within {seconds:g} s"
        except BrokenPipeError:
            line = ""
        if not line:
            return f"the process ended with status {self._process.wait()}"
        outcome: dict[str, str] = json.loads(line)
        return outcome

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()


def run_cases(cases: Sequence[Case], backend: str, samples: int, seconds: float) -> Iterator[dict[str, str]]:
    """Yield the outcome of each case; `crashed` and `hung` are added to those of `coverage_case.Outcome`."""
    worker = _Worker(backend, samples)
    try:
        for name, dtype in cases:
            answer = worker.run((name, dtype), seconds)
            if isinstance(answer, dict):
                yield answer
                continue
            worker.stop()
            worker = _Worker(backend, samples)
            outcome = "hung" if answer.startswith("no answer") else "crashed"
            yield {"op": name, "dtype": dtype, "group": "core", "outcome": outcome, "detail": answer}
    finally:
        worker.stop()


def _work(backend: str, samples: int) -> None:
    """The worker's side: one case per line in, one outcome per line out."""
    import libtorch_neuronx_lite  # noqa: F401  registers the device

    from .coverage_case import run_case

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is not an answer
    for line in sys.stdin:
        name, dtype = json.loads(line)
        answers.write(json.dumps(run_case(name, dtype, backend, samples).as_data()) + "\n")
        answers.flush()


def shares(ours: Outcomes, peer: Outcomes) -> dict[str, Any]:
    """Count per operator: of those whose every case passes with Inductor, how many pass here in every case.

    Without an outcome of Inductor a case counts as passed there.
    """
    groups = {name: outcome["group"] for (name, _), outcome in ours.items() if outcome["outcome"] != "inapplicable"}
    passed = dict.fromkeys(groups, True)
    eligible = dict.fromkeys(groups, True)
    for (name, dtype), outcome in ours.items():
        if outcome["outcome"] == "inapplicable":
            continue
        theirs = peer.get((name, dtype))
        if theirs is not None and theirs["outcome"] != "passed":
            eligible[name] = False
        passed[name] = passed[name] and outcome["outcome"] == "passed"
    every = [name for name in groups if eligible[name]]
    core = [name for name in every if groups[name] not in OUTSIDE]
    return {
        "operators": len(groups),
        "eligible": len(every),
        "core": {"passed": sum(passed[name] for name in core), "of": len(core)},
        "all": {"passed": sum(passed[name] for name in every), "of": len(every)},
        "outcomes": dict(Counter(outcome["outcome"] for outcome in ours.values())),
    }


_SIGNS = {
    "passed": "yes",
    "refused": "refused",
    "untraced": "untraced",
    "wrong": "**wrong**",
    "failed": "**failed**",
    "crashed": "**crashed**",
    "hung": "**hung**",
    "inapplicable": "",
}


def table(ours: Outcomes, summary: Mapping[str, Any]) -> str:
    """Return docs/operators.md: a line per operator, a column per dtype."""
    dtypes = ("float32", "bfloat16", "int64", "bool")
    core, every = summary["core"], summary["all"]
    lines = [
        "# Operators",
        "",
        "Made by `python -m benchmarks.coverage --write-table` from PyTorch's operator database (`op_db`): each",
        "operator through `torch.compile(backend=register())` on the host target, compared with CPU eager. `yes`:",
        "compiled whole, same values, dtypes and shapes. `refused`: an error that names the operator. `untraced`:",
        "Dynamo makes no graph of it, for any backend. Empty: not defined for the dtype. What a chip's compiler makes",
        "of the same StableHLO was not tested.",
        "",
        f"Operators that pass in every dtype: {core['passed']} of {core['of']} outside {', '.join(OUTSIDE)}, and"
        f" {every['passed']} of {every['of']} in all.",
        "",
        "| operator | group | " + " | ".join(dtypes) + " |",
        "|---|---|" + "---|" * len(dtypes),
    ]
    for name in sorted({name for name, _ in ours}):
        found = [ours.get((name, dtype)) for dtype in dtypes]
        group = next(outcome["group"] for outcome in found if outcome is not None)
        cells = [_SIGNS[outcome["outcome"]] if outcome is not None else "" for outcome in found]
        lines.append(f"| {name} | {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    from .measure import parser

    arguments = parser(__doc__)
    arguments.add_argument("--backend", choices=("neuron", "inductor"), default="neuron")
    arguments.add_argument("--file", type=Path, help="of outcomes (default: benchmarks/data/coverage-BACKEND.jsonl)")
    arguments.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th case from I on (default: all)")
    arguments.add_argument("--match", default="", help="only operators whose name contains this")
    arguments.add_argument("--samples", type=int, default=2, help="of each operator and dtype (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=180, help="for one case (default: %(default)s)")
    arguments.add_argument("--report", action="store_true", help="run nothing, count what the file holds")
    arguments.add_argument("--write-table", action="store_true", help="write docs/operators.md from the file")
    arguments.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return arguments.parse_args()


def main() -> None:
    """Runs what is missing, then prints the shares and every case that is neither passed nor refused."""
    options = _arguments()
    if options.worker:
        _work(options.backend, options.samples)
        return
    file: Path = options.file or DATA / f"coverage-{options.backend}.jsonl"
    done = outcomes_of(file)
    if not options.report and not options.write_table:
        from .coverage_case import cases

        first, of = map(int, options.shard.split("/"))
        missing = [case for case in list(cases())[first::of] if case not in done and options.match in case[0]]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            for outcome in tqdm(
                run_cases(missing, options.backend, options.samples, options.seconds), total=len(missing), unit="case"
            ):
                out.write(json.dumps(outcome) + "\n")
                out.flush()
                done[outcome["op"], outcome["dtype"]] = outcome
    summary = shares(done, outcomes_of(DATA / "coverage-inductor.jsonl") if options.backend == "neuron" else {})
    if options.write_table:
        TABLE.write_text(table(done, summary), encoding="utf-8")
    if options.json:
        print(json.dumps(summary))
        return
    for outcome in done.values():
        if outcome["outcome"] not in ("passed", "refused", "untraced", "inapplicable"):
            print(f"{outcome['op']} {outcome['dtype']} {outcome['outcome']}: {outcome['detail'][:160]}")
    for name, limit in (("core", CORE_LIMIT), ("all", ALL_LIMIT)):
        share = summary[name]["passed"] / max(summary[name]["of"], 1)
        met = "met" if share >= limit else "NOT MET"
        counts = f"{summary[name]['passed']} of {summary[name]['of']} operators"
        print(f"{name}: {counts}, {share:.1%}; at least {limit:.0%}: {met}")
    print("cases:", ", ".join(f"{count} {outcome}" for outcome, count in sorted(summary["outcomes"].items())))


if __name__ == "__main__":
    main()
