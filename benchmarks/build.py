# SPDX-License-Identifier: Apache-2.0
"""Size of the wheel and time of its last clean build, as `make wheel` noted them in build/stamps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .measure import Result, Sample, Verdict, parser

LIMIT_MEGABYTES = 10.0
LIMIT_MINUTES = 6.0
_NOTE = Path(__file__).parents[1] / "build" / "stamps" / "build.json"


def main() -> None:
    """Prints size and time with their limits."""
    options = parser(__doc__).parse_args()
    if not _NOTE.is_file():
        sys.exit(f"{_NOTE} is missing: run `make wheel` first (`make clean wheel` for the time of a clean build).")
    note = json.loads(_NOTE.read_text())
    megabytes = note["bytes"] / 1e6
    result = Result(f"build of {Path(note['wheel']).name}", [Sample("wheel", (megabytes,), "MB")])
    result.verdicts.append(Verdict("wheel size", megabytes, LIMIT_MEGABYTES, "MB"))
    minutes = note["seconds"] / 60
    if note["clean"]:
        result.samples.append(Sample(f"clean build, {note['jobs']} jobs", (minutes,), "min"))
        result.verdicts.append(Verdict("clean build", minutes, LIMIT_MINUTES, "min"))
    else:
        result.samples.append(Sample("incremental build (clean: make clean wheel)", (minutes,), "min"))
    result.show(options.json)


if __name__ == "__main__":
    main()
