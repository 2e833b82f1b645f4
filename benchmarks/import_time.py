# SPDX-License-Identifier: Apache-2.0
"""What `import libtorch_neuronx_lite` adds to `import torch`, each round in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

from .measure import Result, Sample, Verdict, parser

LIMIT_SECONDS = 0.3
_CHILD = """
import json, time
begin = time.perf_counter()
import torch
middle = time.perf_counter()
import libtorch_neuronx_lite
print(json.dumps([middle - begin, time.perf_counter() - middle]))
"""


def main() -> None:
    """Prints both imports and the limit."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    rounds = []
    for _ in range(options.rounds + 1):
        output = subprocess.run([sys.executable, "-c", _CHILD], check=True, capture_output=True, text=True).stdout
        rounds.append(json.loads(output))
    torch_seconds, ours = zip(*rounds[1:], strict=True)  # the first round fills the page cache
    added = Sample("import libtorch_neuronx_lite, after torch", ours, "s")
    Result(
        "import time",
        [Sample("import torch", torch_seconds, "s"), added],
        [Verdict("added by the package", added.median, LIMIT_SECONDS, "s")],
    ).show(options.json)


if __name__ == "__main__":
    main()
