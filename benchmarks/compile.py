# SPDX-License-Identifier: Apache-2.0
"""What the compile cache saves: SmolLM2-135M's two steps cold and warm, and the decision about a graph of 5,000 nodes.

Each round runs in new processes, the cold one with an empty cache; loading the weights is not counted. "Our part" is
all that happens after AOTAutograd handed a graph over: key, cache, lowering, compiler, loading.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .measure import Result, Sample, Verdict, parser

WARM_LIMIT = 0.15  # of the cold value
DECISION_LIMIT_MS = 120.0
NODES = 5000
_BUCKET, _CACHE_LENGTH = 128, 256


def _steps(weights: str, random_weights: bool) -> dict[str, Any]:
    """Compiles prefill and decode for neuron:0 with the cache that the environment names."""
    import torch

    import libtorch_neuronx_lite  # noqa: F401  registers the device
    from libtorch_neuronx_lite import worker
    from libtorch_neuronx_lite.cli.demo.compiled import CompiledSession
    from libtorch_neuronx_lite.cli.demo.model import load_pretrained, load_random

    torch.neuron.set_fallback_mode("allow")
    loaded = load_random() if random_weights else load_pretrained(Path(weights))
    started: list[str] = []
    run = worker.WorkerPool.run

    def counted(pool: worker.WorkerPool, job: str, *arguments: Any, **keywords: Any) -> worker.WorkerResult:
        started.append(job)
        return run(pool, job, *arguments, **keywords)

    worker.WorkerPool.run = counted  # type: ignore[method-assign]
    session = CompiledSession(
        loaded, torch.device("neuron", 0), torch.bfloat16, bucket=_BUCKET, cache_length=_CACHE_LENGTH
    )
    return {"whole": session.compile_seconds, "ours": session.after_aot_seconds, "compilers": len(started)}


def _decision(rounds: int) -> dict[str, Any]:
    """Times the key and the look into the cache for a graph of NODES nodes that is there."""
    import torch
    from torch import fx

    import libtorch_neuronx_lite  # noqa: F401  registers the device
    from libtorch_neuronx_lite.compile import backend
    from libtorch_neuronx_lite.compile.native_backend import register
    from libtorch_neuronx_lite.compile.options import Options
    from libtorch_neuronx_lite.compile.request import request_for

    values: list[float] = []
    nodes: list[int] = []
    build = backend.build_executable

    def timed(**keywords: Any) -> Any:
        artifact = build(**keywords)
        gm: fx.GraphModule = keywords["gm"]
        if not nodes:  # the first one lowered its graph, in place
            nodes.append(0)
            return artifact
        nodes.append(len(gm.graph.nodes))
        for _ in range(rounds):
            begin = time.perf_counter()
            request = request_for(gm, Options())
            build(gm=gm, example_inputs=keywords["example_inputs"], request=request)
            values.append((time.perf_counter() - begin) * 1e3)
        return artifact

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(NODES // 15):
            x = torch.nn.functional.layer_norm(torch.relu(x @ w) + x * 0.5, (32,))
        return x

    backend.build_executable = timed
    x, w = (torch.randn(32, 32).to("neuron:0") for _ in range(2))
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            torch.compile(model, backend=register(), dynamic=False)(x, w)
    return {"nodes": nodes[1], "values": values}


def _child(options: argparse.Namespace, name: str, root: str, weights: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.compile", "--child", name, "--weights", str(weights)]
    command += ["--rounds", str(options.rounds), *(["--random-weights"] if options.random_weights else [])]
    environment = {**os.environ, "NEURON_LIBTORCH_CACHE_ROOT": root}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    parsed: dict[str, Any] = json.loads(output.splitlines()[-1])
    return parsed


def main() -> None:
    """Prints cold and warm times, the decision, and the limits."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=3, help="of cold and warm in turn (default: %(default)s)")
    arguments.add_argument("--random-weights", action="store_true", help="the same architecture, seeded weights")
    arguments.add_argument("--child", choices=("steps", "decision"), help=argparse.SUPPRESS)
    arguments.add_argument("--weights", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.child is not None:
        steps = options.child == "steps"
        print(json.dumps(_steps(options.weights, options.random_weights) if steps else _decision(options.rounds)))
        return
    from libtorch_neuronx_lite import envs

    weights = Path(envs.get_neuron_compile_cache_dir()).parent / "demo"
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for runs in (cold, warm):
                runs.append(_child(options, "steps", f"{folder}/{number}", weights))
        decision = _child(options, "decision", f"{folder}/decision", weights)
    result = Result("the compile cache; SmolLM2-135M, bfloat16, prefill of 128 and decode")
    for name, runs in (("cold", cold), ("warm, local cache", warm)):
        result.samples.append(Sample(f"{name}: first calls of both steps", tuple(run["whole"] for run in runs), "s"))
        result.samples.append(Sample("  our part of it", tuple(run["ours"] for run in runs), "s"))
    ratio = Sample("our part, warm to cold", tuple(w["ours"] / c["ours"] for w, c in zip(warm, cold, strict=True)), "")
    hit = Sample(f"key and hit, graph of {decision['nodes']} nodes", tuple(decision["values"]), "ms")
    result.samples += [ratio, hit]
    result.verdicts += [
        Verdict("our part, warm to cold", ratio.median, WARM_LIMIT, ""),
        Verdict("compilers started when warm", float(max(run["compilers"] for run in warm)), 0.0, ""),
        Verdict("key and hit", hit.median, DECISION_LIMIT_MS, "ms"),
    ]
    result.show(options.json)


if __name__ == "__main__":
    main()
