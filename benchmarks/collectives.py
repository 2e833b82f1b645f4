# SPDX-License-Identifier: Apache-2.0
"""all_reduce between two processes: inside a compiled graph on the host runtime, and gloo's on CPU tensors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import libtorch_neuronx_lite  # noqa: F401  registers the device
from libtorch_neuronx_lite.compile.native_backend import register
from libtorch_neuronx_lite.distributed import rendezvous

from .measure import Result, Sample, Verdict, parser

_LARGE, _SMALL = 16 << 20, 4 << 10  # bytes
_RANKS = 2
# Collectives in one graph, and gloo's calls in one measurement: what a model does, and what leaves out the cost of the
# call of the graph, which `dispatch` measures.
_CHAIN = {_LARGE: 4, _SMALL: 64}
LEAST_SPEEDUP = 5.0


def main() -> None:
    """Starts the ranks; rank 0 prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=21)
    options = arguments.parse_args()
    if "RANK" in os.environ:
        _run_rank(options.rounds, options.json)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(_RANKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.collectives", *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env={**os.environ, **variables, "RANK": str(rank)}) for rank in range(_RANKS)]
    sys.exit(max(abs(process.wait()) for process in ranks))


def _run_rank(rounds: int, as_json: bool) -> None:
    dist.init_process_group("gloo")
    rendezvous()
    result = Result("all_reduce of float32 between two processes")
    with torch.no_grad():
        for bytes_, name, unit, scale in ((_LARGE, "16 MiB", "ms", 1e3), (_SMALL, "4 KiB", "us", 1e6)):
            gloo, ours = _measure(bytes_, rounds, scale)
            result.samples += [Sample(f"gloo, {name}", gloo, unit), Sample(f"in a graph, {name}", ours, unit)]
            speedup = result.samples[-2].median / result.samples[-1].median
            result.verdicts.append(Verdict(f"gloo's time / ours, {name}", speedup, LEAST_SPEEDUP, "x", at_least=True))
    if dist.get_rank() == 0:
        result.show(as_json)
    dist.barrier()
    dist.destroy_process_group()


def _measure(bytes_: int, rounds: int, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the time of one all_reduce, in each round: gloo's and ours."""
    count = _CHAIN[bytes_]
    host = torch.zeros(bytes_ // 4)
    device = host.to("neuron")

    group = dist.group.WORLD
    assert group is not None

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = funcol.all_reduce(x, "sum", group)
        return x

    compiled = torch.compile(chain, backend=register(), fullgraph=True, dynamic=False)

    def with_gloo() -> None:
        for _ in range(count):
            dist.all_reduce(host)

    def in_graph() -> None:
        compiled(device)
        torch.accelerator.synchronize()

    for function in (with_gloo, in_graph):
        function()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, taken in zip((with_gloo, in_graph), times, strict=True):
            taken.append(_seconds(function) / count * scale)
    return tuple(times[0]), tuple(times[1])


def _seconds(function: Callable[[], None]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
