# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct, bfloat16, batch 1: cold compile beside Inductor's, decode rate beside CPU eager's.

A cold compile runs in a new process with an empty compile cache; loading the weights is not counted.
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

from .measure import Result, Sample, Verdict, interleave, parser

AFTER_AOT_LIMIT_SECONDS = 15.0
LEAST_RATIO_TO_INDUCTOR = 3.0
BUCKET, CACHE_LENGTH = 128, 256
_DECODE_TOKENS = 24  # per round


def _load(random_weights: bool) -> Any:
    from libtorch_neuronx_lite import envs
    from libtorch_neuronx_lite.cli.demo.model import load_pretrained, load_random

    folder = Path(envs.get_neuron_compile_cache_dir()).parent / "demo"
    return load_random() if random_weights else load_pretrained(folder)


def _neuron(random_weights: bool, rounds: int) -> dict[str, Any]:
    """Compiles for neuron:0, then decodes in turn there and on the CPU, eager."""
    import torch

    import libtorch_neuronx_lite  # noqa: F401  registers the device
    from libtorch_neuronx_lite.cli.demo.compiled import CompiledSession, core_threads, eager_session
    from libtorch_neuronx_lite.cli.demo.generation import Session, generate

    torch.neuron.set_fallback_mode("allow")
    loaded = _load(random_weights)
    dtype = torch.bfloat16
    compiled = CompiledSession(loaded, torch.device("neuron", 0), dtype, bucket=BUCKET, cache_length=CACHE_LENGTH)
    torch.set_num_threads(core_threads())
    eager = eager_session(loaded, dtype, CACHE_LENGTH)
    prompt = loaded.codec.encode("What is the capital of France?")
    prefill: dict[str, list[float]] = {"neuron": [], "eager": []}

    def decode(name: str, session: Session) -> float:
        answer = generate(session, prompt, _DECODE_TOKENS)
        prefill[name].append(answer.prefill_seconds * 1e3)
        return answer.decode_tokens_per_second or 0.0

    cases = {"neuron": lambda: decode("neuron", compiled.session), "eager": lambda: decode("eager", eager)}
    interleave(cases, 1)  # warm
    for values in prefill.values():
        values.clear()
    rates = interleave(cases, rounds)
    return {
        "compile": compiled.compile_seconds,
        "after_aot": compiled.after_aot_seconds,
        "rates": rates,
        "prefill": prefill,
        "threads": torch.get_num_threads(),
    }


def _inductor(random_weights: bool) -> dict[str, Any]:
    """Compiles the same two steps with Inductor, for the CPU."""
    import torch

    from libtorch_neuronx_lite.cli.demo.generation import Session, StaticKvCache

    loaded = _load(random_weights)
    module = loaded.module.to(torch.bfloat16)
    cache = StaticKvCache(loaded.config, CACHE_LENGTH, torch.bfloat16, torch.device("cpu"))
    session = Session(module, cache, BUCKET, lambda step: torch.compile(step, fullgraph=True, dynamic=False))
    started = time.perf_counter()
    with torch.no_grad():
        token, _ = session.prefill([0])
        session.decode(token)
    return {"compile": time.perf_counter() - started}


def _child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one of the two functions above in a new process whose compile caches are empty."""
    command = [sys.executable, "-m", "benchmarks.smollm2", "--child", name, "--rounds", str(options.rounds)]
    if options.random_weights:
        command.append("--random-weights")
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "NEURON_LIBTORCH_DISABLE_COMPILE_CACHE": "1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    parsed: dict[str, Any] = json.loads(output.splitlines()[-1])
    return parsed


def main() -> None:
    """Prints compile times, rates and the three limits."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=9, help="of decoding (default: %(default)s)")
    arguments.add_argument("--random-weights", action="store_true", help="the same architecture, seeded weights")
    arguments.add_argument("--skip-inductor", action="store_true", help="leave out the peer of the compile (minutes)")
    arguments.add_argument("--child", choices=("neuron", "inductor"), help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.child:
        measured = (
            _neuron(options.random_weights, options.rounds)
            if options.child == "neuron"
            else _inductor(options.random_weights)
        )
        print(json.dumps(measured))
        return
    ours = _child("neuron", options)
    result = Result(f"SmolLM2-135M, bfloat16, batch 1, {ours['threads']} threads")
    result.samples += [
        Sample("cold compile, prefill and decode", (ours["compile"],), "s"),
        Sample("  of it after AOTAutograd", (ours["after_aot"],), "s"),
        Sample("prefill of 128, neuron:0", tuple(ours["prefill"]["neuron"]), "ms"),
        Sample("prefill, CPU eager, not padded", tuple(ours["prefill"]["eager"]), "ms"),
        Sample("decode, neuron:0", tuple(ours["rates"]["neuron"]), "tokens/s"),
        Sample("decode, CPU eager", tuple(ours["rates"]["eager"]), "tokens/s"),
    ]
    ratios = tuple(a / b for a, b in zip(ours["rates"]["neuron"], ours["rates"]["eager"], strict=True))
    ratio = Sample("decode, ratio to CPU eager", ratios, "")
    result.samples.append(ratio)
    result.verdicts += [
        Verdict("compile after AOTAutograd", ours["after_aot"], AFTER_AOT_LIMIT_SECONDS, "s"),
        Verdict("decode rate, ratio to CPU eager", ratio.median, 1.0, "", at_least=True),
    ]
    if not options.skip_inductor:
        peer = _child("inductor", options)["compile"]
        result.samples.append(Sample("cold compile, Inductor on the CPU", (peer,), "s"))
        result.verdicts.append(
            Verdict("times faster to compile than Inductor", peer / ours["compile"], LEAST_RATIO_TO_INDUCTOR, "", True)
        )
    result.show(options.json)


if __name__ == "__main__":
    main()
