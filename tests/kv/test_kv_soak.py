# SPDX-License-Identifier: Apache-2.0
"""Many mixed requests from two decode agents while the producer is stopped, cancelled on, and runs out of time."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kv_worker import WorkerProcess, cache, tokens_of

from libtorch_neuronx_lite import kv

BLOCKS = 64


class Producer:
    """Leases blocks of a cache in this process, whose content never changes, and counts what comes back."""

    def __init__(self, agent: kv.Agent) -> None:
        self.agent = agent
        self.tensors = cache(BLOCKS, 8, kv.NHD, "shared")
        agent.register_kv(self.tensors, kv.KvLayout(kv.NHD))
        self.free = list(range(BLOCKS))
        self.ended: dict[str, str] = {}

    def reclaim(self) -> None:
        for event in self.agent.lease_events():
            assert event.request not in self.ended, "two events for one lease"
            self.ended[event.request] = event.end
            self.free.extend(event.blocks)

    def take(self, count: int) -> list[int]:
        limit = time.monotonic() + 60
        while len(self.free) < count:
            self.reclaim()
            assert time.monotonic() < limit, f"blocks are stuck: {len(self.free)} of {BLOCKS} are free"
            time.sleep(0.001)
        taken, self.free = self.free[:count], self.free[count:]
        return taken


def soak(start_worker: Callable[..., WorkerProcess], start_agent: Callable[..., kv.Agent], requests: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    readers = {
        name: start_worker(name, {"providers": [provider]}, blocks=BLOCKS, pool="host", value=0.0)
        for name, provider in (("decode-0", "shm"), ("decode-1", "tcp"))
    }
    producer = Producer(start_agent("prefill-0", providers=["shm", "tcp"]))
    for worker in readers.values():
        worker.call("connect", producer.agent.endpoint)
    outcomes: dict[str, int] = {}
    grown_from = 0
    for number in range(requests):
        if number == requests // 4:
            grown_from = resident_bytes()
        name = rng.choice(list(readers))
        blocks = producer.take(rng.randint(1, 6))
        local = rng.sample(range(BLOCKS), len(blocks))
        fault = rng.random()
        lease = producer.agent.grant(f"request-{number}", blocks, [name], 0.02 if fault < 0.02 else 20.0)
        ticket = lease.ticket.to_json()
        if fault < 0.01:
            time.sleep(0.03)  # it expires before it is read
        elif 0.02 <= fault < 0.04:
            lease.release("aborted")
        pause = None
        if 0.04 <= fault < 0.045:  # the reader stands still for a while
            readers[name].signal(signal.SIGSTOP)
            pause = threading.Timer(0.05, readers[name].signal, [signal.SIGCONT])
            pause.start()
        try:
            readers[name].call("read", "prefill-0", ticket, local, timeout=60)
            outcome = "done"
            if number % 20 == 0:
                arrived = readers[name].call("contents", local)
                for expected, tensor in zip(producer.tensors, arrived, strict=True):
                    assert torch.equal(tokens_of(expected, kv.NHD, blocks), tensor), f"seed {seed}, {number}"
        except kv.KvTransferError as error:
            outcome = error.cause
            if fault >= 0.045:
                raise
            lease.release("the read failed")
        if pause is not None:
            pause.join()
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        producer.reclaim()
    limit = time.monotonic() + 60
    while len(producer.free) < BLOCKS:
        producer.reclaim()
        assert time.monotonic() < limit, f"leaked blocks: {BLOCKS - len(producer.free)} (seed {seed})"
        time.sleep(0.01)
    assert len(producer.ended) == requests
    assert sorted(producer.free) == list(range(BLOCKS))
    assert outcomes["done"] > requests * 0.9
    assert set(outcomes) <= {"done", "lease_expired"}, outcomes
    producer.agent.drain(10.0)
    producer.agent.resume()
    assert producer.agent.healthy() == (True, "")
    assert resident_bytes() - grown_from < 32 << 20


def resident_bytes() -> int:
    """Of this process now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_short_soak(start_worker: Any, start_agent: Any) -> None:
    soak(start_worker, start_agent, 400)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_soak_of_twenty_thousand_requests(start_worker: Any, start_agent: Any) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    soak(start_worker, start_agent, 20_000)
    assert len(os.listdir("/proc/self/fd")) < descriptors + 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB
