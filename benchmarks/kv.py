# SPDX-License-Identifier: Apache-2.0
"""KV transfer between two processes beside NIXL, Mooncake, process_vm_readv and memcpy, interleaved in one run.

Bulk: 64 MiB in scattered blocks per transfer, from the request to the last byte. Latency: one 4 KiB block, post to
done. Killed peer: from SIGKILL to the failure of a read, by the size of the pool (column block). A peer that is not
installed is left out, and so are the ratios to it.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from libtorch_neuronx_lite import kv

from .kv_killed import killed_peer_seconds
from .kv_peers import (
    POOL_BYTES,
    AgentMover,
    MemcpyMover,
    MooncakeMover,
    Mover,
    NixlMover,
    Target,
    VmReadMover,
    serve_agent,
    serve_mooncake,
    serve_nixl,
    timed,
)
from .measure import Verdict, parser

BULK_BYTES = 64 << 20
BLOCK_SIZES = (256, 4 << 10, 64 << 10, 1 << 20)
OURS, OURS_TCP, NIXL, NIXL_TCP, MEMCPY = "kv shm", "kv tcp", "nixl", "nixl tcp", "memcpy"
KILLED = {"kv, killed": "", "kv tcp, killed": "tcp:127.0.0.1:0"}  # by where it listens
KILLED_POOLS = (64 << 20, 512 << 20, 1 << 30)
_SLOW_SECONDS = 2.0  # a mover that takes longer for one transfer is measured in fewer rounds


@dataclass(frozen=True)
class Row:
    """One line of the table; bulk rows have rates of 1e9 bytes a second, latency rows times."""

    peer: str
    op: str
    block_bytes: int
    scattered: bool
    gbps_median: float | None
    gbps_min: float | None
    gbps_max: float | None
    p50_us: float
    p99_us: float


def main() -> None:
    """Prints the table, and the ratios with their limits."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--latency-rounds", type=int, default=9)
    arguments.add_argument("--kills", type=int, default=3, help="of each pool size; every one starts a process")
    options = arguments.parse_args()
    with _movers() as (movers, absent):
        rows = [row for size in BLOCK_SIZES for row in _bulk(movers, size, options.rounds)]
        rows += _latency(movers, 4 << 10, options.latency_rounds)
    rows += _killed(options.kills)
    verdicts = [*_ratios(rows), _plan_and_post(), _late_bytes()]
    if options.json:
        data = {
            "rows": [asdict(row) for row in rows],
            "ratios": {v.name: v.value for v in verdicts},
            "limits": {v.name: {"limit": v.limit, "at_least": v.at_least, "met": v.met} for v in verdicts},
            "absent": absent,
        }
        print(json.dumps(data))
        return
    _show(rows, verdicts, absent)


@contextlib.contextmanager
def _movers() -> Iterator[tuple[list[Mover], dict[str, str]]]:
    """All movers that this machine has, and why the others are absent."""
    targets: list[Target] = []
    movers: list[Mover] = []
    absent: dict[str, str] = {}

    def start(
        name: str, serve: Callable[..., None], arguments: tuple[Any, ...], *make: Callable[[Target], Mover]
    ) -> None:
        try:
            targets.append(Target(serve, *arguments))
            movers.extend(made(targets[-1]) for made in make)
        except (RuntimeError, ImportError, OSError) as error:
            absent[name] = " ".join(str(error).split())

    start(
        "kv", serve_agent, (),
        lambda target: AgentMover(target, "shm"),
        lambda target: AgentMover(target, "shm", threads=2),
        lambda target: AgentMover(target, "tcp"),
        VmReadMover,
        MemcpyMover,
    )  # fmt: skip
    start("nixl", serve_nixl, ("",), lambda target: NixlMover(target, ""))
    start("nixl tcp", serve_nixl, ("tcp",), lambda target: NixlMover(target, "tcp"))
    start("mooncake tcp", serve_mooncake, (), MooncakeMover)
    try:
        yield movers, absent
    finally:
        for target in targets:
            target.stop()


def _scattered(block_bytes: int, seed: int) -> tuple[Any, Any]:
    """Block numbers for one transfer on either side, no two of them neighbours in order but by chance."""
    random = np.random.default_rng(seed)
    count, total = BULK_BYTES // block_bytes, POOL_BYTES // block_bytes
    return random.permutation(total)[:count], random.permutation(total)[:count]


def _check(mover: Any, block_bytes: int, local: Any, remote: Any) -> None:
    """The source's words are their own numbers: what arrived must be those of the blocks that were asked for."""
    words = mover.memory.view(torch.int64).view(-1, block_bytes // 8)
    arrived = words[: len(remote)] if mover.name == MEMCPY else words[torch.from_numpy(local)]
    first = torch.from_numpy(remote * (block_bytes // 8))
    if not ((arrived[:, 0] == first).all() and (arrived[:, -1] == first + block_bytes // 8 - 1).all()):
        raise RuntimeError(f"{mover.name} moved wrong bytes of {block_bytes}-byte blocks")


def _bulk(movers: list[Mover], block_bytes: int, rounds: int) -> list[Row]:
    local, remote = _scattered(block_bytes, block_bytes)
    calls = {mover.name: mover.prepare(block_bytes, local, remote) for mover in movers}
    seconds: dict[str, list[float]] = {}
    for mover in movers:
        warm = timed(calls[mover.name])
        _check(mover, block_bytes, local, remote)
        seconds[mover.name] = [warm] if warm > _SLOW_SECONDS else []
    for number in range(rounds):
        for name, call in calls.items():
            if not (seconds[name] and seconds[name][0] > _SLOW_SECONDS and number):
                seconds[name].append(timed(call))
    return [_bulk_row(name, block_bytes, values) for name, values in seconds.items()]


def _bulk_row(name: str, block_bytes: int, seconds: list[float]) -> Row:
    rates = [BULK_BYTES / value / 1e9 for value in seconds]
    return Row(
        name, "read", block_bytes, True, statistics.median(rates), min(rates), max(rates),
        _quantile(seconds, 0.5) * 1e6, _quantile(seconds, 0.99) * 1e6,
    )  # fmt: skip


def _latency(movers: list[Mover], block_bytes: int, rounds: int) -> list[Row]:
    calls = {mover.name: mover.repeat(block_bytes, 3, 5) for mover in movers}
    targets = {mover.name: getattr(mover, "_target", None) for mover in movers}
    micros: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            target = targets[name]
            with target.spinning() if isinstance(target, Target) else contextlib.nullcontext():
                limit = time.perf_counter() + 0.2
                for _ in range(50):
                    call()
                while len(micros[name]) < 100_000 and time.perf_counter() < limit:
                    started = time.perf_counter_ns()
                    call()
                    micros[name].append((time.perf_counter_ns() - started) / 1e3)
    return [
        Row(name, "latency", block_bytes, False, None, None, None, _quantile(values, 0.5), _quantile(values, 0.99))
        for name, values in micros.items()
    ]


def _killed(kills: int) -> list[Row]:
    """Times from the death of a peer to the failure of a read from it, by the size of its pool, interleaved."""
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in KILLED for size in KILLED_POOLS}
    for _ in range(kills):
        for (name, size), values in seconds.items():
            values.append(killed_peer_seconds(size, KILLED[name]))
    return [
        Row(name, "killed", size, False, None, None, None, _quantile(values, 0.5) * 1e6, _quantile(values, 0.99) * 1e6)
        for (name, size), values in seconds.items()
    ]


def _quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share))


def _ratios(rows: list[Row]) -> list[Verdict]:
    rates = {(row.peer, row.block_bytes): row.gbps_median for row in rows if row.op == "read"}
    latency = {row.peer: row.p50_us for row in rows if row.op == "latency"}
    promised = [
        ("256 B runs, times NIXL", OURS, NIXL, 256, 15.0),
        ("4 KiB blocks, times NIXL", OURS, NIXL, 4 << 10, 3.5),
        ("64 KiB blocks, times NIXL", OURS, NIXL, 64 << 10, 1.7),
        ("1 MiB blocks, times NIXL", OURS, NIXL, 1 << 20, 1.5),
        ("1 MiB blocks, times memcpy", OURS, MEMCPY, 1 << 20, 0.85),
        ("tcp, 4 KiB blocks, times NIXL's tcp", OURS_TCP, NIXL_TCP, 4 << 10, 3.0),
        ("tcp, 64 KiB blocks, times NIXL's tcp", OURS_TCP, NIXL_TCP, 64 << 10, 1.5),
        ("tcp, 1 MiB blocks, times NIXL's tcp", OURS_TCP, NIXL_TCP, 1 << 20, 1.5),
    ]
    verdicts = []
    for name, ours, other, size, limit in promised:
        mine, theirs = rates.get((ours, size)), rates.get((other, size))
        if mine and theirs:
            verdicts.append(Verdict(name, mine / theirs, limit, "x", at_least=True))
    if OURS in latency and NIXL in latency:
        verdicts.append(Verdict("one 4 KiB block p50, share of NIXL's", latency[OURS] / latency[NIXL], 0.5, "x"))
    verdicts += [
        Verdict(f"{row.peer}, 512 MiB pool, to the failure", row.p50_us / 1e3, 100.0, "ms")
        for row in rows
        if row.op == "killed" and row.block_bytes == 512 << 20
    ]
    return verdicts


def _plan_and_post() -> Verdict:
    """Milliseconds of the caller for `Agent.read` of 16,384 runs: 32 layers, K and V, 256 blocks of 4 KiB."""
    layers, blocks, taken = 32, 512, 256
    with kv.Agent("plan-source") as source, kv.Agent("plan-target") as target:
        for agent in (source, target):
            tensors = [torch.zeros(blocks, 16, 1, 128, dtype=torch.bfloat16) for _ in range(2 * layers)]
            agent.register_kv(tensors, kv.KvLayout(kv.NHD))
        peer = target.connect(source.endpoint)
        random = np.random.default_rng(0)
        values = []
        for _ in range(31):
            # Every second block: no two are neighbours, so no two runs are joined.
            local, remote = (2 * random.permutation(taken)).tolist(), (2 * random.permutation(taken)).tolist()
            ticket = source.grant("plan", remote, ["plan-target"], 30.0).ticket
            started = time.perf_counter()
            transfer = target.read(peer, ticket, local, deadline=30.0)
            values.append((time.perf_counter() - started) * 1e3)
            with transfer:
                transfer.wait()
                runs = transfer.times().runs
            if runs != 2 * layers * taken:
                raise RuntimeError(f"{runs} runs were planned")
    return Verdict("plan and post of 16,384 runs", statistics.median(values), 0.3, "ms")


def _late_bytes() -> Verdict:
    """Bytes that land after release said OK, over reads that are cancelled at every stage."""
    late = 0
    target = Target(serve_agent)
    try:
        for provider in ("shm", "tcp"):
            mover = AgentMover(target, provider)
            local, remote = _scattered(64 << 10, 1)
            runs = mover.runs(64 << 10, local, remote)
            random = np.random.default_rng(2)
            for _ in range(12):
                transfer = mover.agent.prepare_read(mover.peer, runs)
                transfer.post(30.0)
                time.sleep(float(random.uniform(0, 0.015)))
                transfer.cancel()
                while True:
                    try:
                        transfer.release()
                        break
                    except kv.KvBusyError:
                        time.sleep(0.0002)
                mover.memory.fill_(0xA5)
                time.sleep(0.02)
                late += int((mover.memory != 0xA5).sum())
            mover.agent.close()
    finally:
        target.stop()
    return Verdict("bytes that land after release", float(late), 0.0, "B")


def _show(rows: list[Row], verdicts: list[Verdict], absent: dict[str, str]) -> None:
    print(f"{BULK_BYTES >> 20} MiB per transfer between two processes")
    print(f"  {'peer':<18}{'op':<9}{'block':>9}  {'GB/s':>7} {'min':>7} {'max':>7} {'p50 us':>11} {'p99 us':>11}")
    for row in rows:
        rates = (row.gbps_median, row.gbps_min, row.gbps_max)
        shown = " ".join(f"{'-' if rate is None else format(rate, '.2f'):>7}" for rate in rates)
        print(f"  {row.peer:<18}{row.op:<9}{row.block_bytes:>9}  {shown} {row.p50_us:>11.1f} {row.p99_us:>11.1f}")
    for verdict in verdicts:
        bound = "at least" if verdict.at_least else "at most"
        state = "met" if verdict.met else "NOT MET"
        print(f"  {verdict.name:<40} {verdict.value:>8.2f} {verdict.unit:<3} {bound} {verdict.limit:g}: {state}")
    for name, why in absent.items():
        print(f"  {name}: left out, {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
