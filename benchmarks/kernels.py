# SPDX-License-Identifier: Apache-2.0
"""Norm with gate, softmax, rotary embedding, layer norm, GELU and attention: neuron:0, CPU eager and Inductor in turn.

bfloat16 rows of 576 elements, one row and 1,024; attention is a decode step and a prefill of 128 over a cache of 256.
Each time is that of one call of the compiled function until its result is there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from libtorch_neuronx_lite import device as neuron
from libtorch_neuronx_lite.cli.demo.compiled import core_threads
from libtorch_neuronx_lite.compile.native_backend import register

from .measure import Result, Sample, interleave, parser

WIDTH, HEADS, KEY_HEADS, HEAD, CACHE = 576, 9, 3, 64, 256
Function = Callable[..., torch.Tensor]


def norm_gate(x: torch.Tensor, up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm of `x`, then SiLU of it times `up`."""
    wide = x.float()
    normed = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return functional.silu(normed) * up


def rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [heads, rows, head]."""
    half = x.shape[-1] // 2
    return x * cosine + torch.cat((-x[..., half:], x[..., :half]), -1) * sine


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """LayerNorm over the last dimension."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension."""
    return torch.softmax(x, -1)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU, the exact form."""
    return functional.gelu(x)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Grouped attention over a static cache under a mask."""
    return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def _cases() -> dict[str, tuple[Function, list[torch.Tensor]]]:
    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(torch.bfloat16)

    cases: dict[str, tuple[Function, list[torch.Tensor]]] = {}
    for count in (1, 1024):
        x, weight, bias = rows(count, WIDTH), rows(WIDTH), rows(WIDTH)
        cases[f"RMSNorm and SiLU gate, {count} rows"] = norm_gate, [x, rows(count, WIDTH), weight]
        cases[f"softmax, {count} rows"] = softmax, [x]
        cases[f"rotary, {count} rows"] = rotary, [rows(HEADS, count, HEAD), rows(count, HEAD), rows(count, HEAD)]
        cases[f"layer norm, {count} rows"] = layer_norm, [x, weight, bias]
        cases[f"GELU, {count} rows"] = gelu, [x]
    for tokens, first in ((1, 100), (128, 0)):
        mask = torch.arange(CACHE) <= (torch.arange(tokens) + first).unsqueeze(1)
        cache = [rows(1, KEY_HEADS, CACHE, HEAD) for _ in range(2)]
        cases[f"attention, {tokens} queries"] = attention, [rows(1, HEADS, tokens, HEAD), *cache, mask]
    return cases


def _timed(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> Callable[[], float]:
    """A case for `interleave`: the median time of `calls` calls, in microseconds."""

    def measure() -> float:
        times = []
        for _ in range(calls):
            started = time.perf_counter_ns()
            call()
            wait()
            times.append((time.perf_counter_ns() - started) / 1000)
        return statistics.median(times)

    return measure


def _measure(function: Function, tensors: list[torch.Tensor], rounds: int, calls: int) -> dict[str, tuple[float, ...]]:
    torch.compiler.reset()
    ours = torch.compile(function, backend=register(), fullgraph=True, dynamic=False)
    inductor = torch.compile(function, fullgraph=True, dynamic=False)
    moved = [tensor.to("neuron:0") for tensor in tensors]
    cases = {
        "neuron:0": _timed(lambda: ours(*moved), neuron.synchronize, calls),
        "Inductor": _timed(lambda: inductor(*tensors), lambda: None, calls),
        "CPU eager": _timed(lambda: function(*tensors), lambda: None, calls),
    }
    interleave(cases, 1)  # compiles, and warms
    return interleave(cases, rounds)


def main() -> None:
    """Prints the times and their ratios."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    arguments.add_argument("--calls", type=int, default=20, help="per round (default: %(default)s)")
    options = arguments.parse_args()
    threads = core_threads()
    torch.set_num_threads(threads)
    neuron.set_fallback_mode("allow")
    result = Result(f"kernels, bfloat16, {threads} threads")
    with torch.no_grad():
        for name, (function, tensors) in _cases().items():
            times = _measure(function, tensors, options.rounds, options.calls)
            result.samples += [Sample(f"{name}, {peer}", values, "us") for peer, values in times.items()]
            ratios = tuple(a / b for a, b in zip(times["Inductor"], times["neuron:0"], strict=True))
            result.samples.append(Sample(f"{name}, times Inductor's speed", ratios, ""))
    result.show(options.json)


if __name__ == "__main__":
    main()
