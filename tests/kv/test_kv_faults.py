# SPDX-License-Identifier: Apache-2.0
"""Peers that die, stop and come back, and transfers that are cancelled: each ends once, with its cause, and is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kv_worker import WorkerProcess, tokens_of

from libtorch_neuronx_lite import kv

StartWorker = Callable[..., WorkerProcess]
StartAgent = Callable[..., kv.Agent]
BLOCKS = 16


def consumer(start_agent: StartAgent, **options: Any) -> Any:
    """An agent with an empty cache of 16 blocks of 8 tokens in this process: (agent, tensors)."""
    from kv_worker import cache

    agent = start_agent("decode-0", **options)
    tensors = cache(BLOCKS, 8, kv.NHD, "host", 0.0)
    agent.register_kv(tensors, kv.KvLayout(kv.NHD))
    return agent, tensors


def stopped_read(
    start_worker: StartWorker, start_agent: StartAgent, deadline: float
) -> tuple[WorkerProcess, kv.Agent, kv.Transfer, list[torch.Tensor]]:
    """A read from a producer that SIGSTOP holds: it can neither progress nor end by itself."""
    worker = start_worker("prefill-0", {"providers": ["tcp"]})
    agent, tensors = consumer(start_agent, providers=["tcp"])
    peer = agent.connect(worker.endpoint)
    worker.signal(signal.SIGSTOP)
    transfer = agent.read(peer, "request", list(range(BLOCKS)), list(range(BLOCKS)), deadline)
    assert not transfer.done()
    return worker, agent, transfer, tensors


def until_released(transfer: kv.Transfer, seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while True:
        try:
            transfer.release()
            return
        except kv.KvBusyError:
            assert time.monotonic() < limit, "it stays busy"
            time.sleep(0.005)


def test_a_killed_peer_fails_its_transfers(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker, agent, transfer, _ = stopped_read(start_worker, start_agent, 60.0)
    worker.kill()
    with pytest.raises(kv.KvPeerLostError) as failure:
        transfer.wait(20)
    assert failure.value.cause == "peer_lost"
    assert failure.value.failed_tokens == ((0, BLOCKS * 8),)
    until_released(transfer)
    transfer.release()
    peer = agent.peer("prefill-0")
    assert peer is not None
    limit = time.monotonic() + 20
    while peer.state not in ("down", "handshaking"):  # the data connection may have told first
        assert time.monotonic() < limit, peer
        time.sleep(0.005)
    assert peer.info().why


def test_a_stopped_peer_fails_at_the_deadline(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker, _, transfer, tensors = stopped_read(start_worker, start_agent, 0.5)
    with pytest.raises(kv.KvTimeoutError):
        transfer.wait(0.05)
    assert not transfer.done()
    with pytest.raises(kv.KvDeadlineError):
        transfer.wait(20)
    until_released(transfer)
    before = [tensor.clone() for tensor in tensors]
    worker.signal(signal.SIGCONT)
    assert len(worker.call("contents", [0])) == len(tensors)  # it runs again, and has answered what was waiting
    time.sleep(0.2)
    assert all(torch.equal(old, new) for old, new in zip(before, tensors, strict=True))


def test_cancel_then_release_and_not_a_byte_more(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker, agent, transfer, tensors = stopped_read(start_worker, start_agent, 60.0)
    with pytest.raises(kv.KvBusyError):
        transfer.release()
    transfer.cancel()
    transfer.cancel()
    with pytest.raises(kv.KvCancelledError):
        transfer.wait(20)
    until_released(transfer)
    for tensor in tensors:
        tensor.fill_(-1.0)
    worker.signal(signal.SIGCONT)
    # The same session goes on, and the cancelled read is not part of it.
    peer = agent.peer("prefill-0")
    assert peer is not None
    with agent.read(peer, "next", [0], [7], 20.0) as following:
        following.wait(20)
    assert all((tokens_of(tensor, kv.NHD, list(range(1, BLOCKS))) == -1.0).all() for tensor in tensors)


def test_a_dropped_context_cancels_and_releases(start_worker: StartWorker, start_agent: StartAgent) -> None:
    _, agent, transfer, _ = stopped_read(start_worker, start_agent, 60.0)
    with transfer:
        pass
    assert "released" in repr(transfer)
    agent.drain(5.0)


def test_a_restarted_peer_is_met_again(tmp_path: Path, start_worker: StartWorker, start_agent: StartAgent) -> None:
    config = {"bind": f"unix:{tmp_path}/prefill.sock"}
    first = start_worker("prefill-0", config)
    agent, tensors = consumer(start_agent)
    peer = agent.connect(first.endpoint)
    incarnation = peer.info().incarnation
    first.kill()
    second = start_worker("prefill-0", config, value=7.0)
    limit = time.monotonic() + 20
    while not (peer.up and peer.info().incarnation != incarnation):
        assert time.monotonic() < limit, peer
        time.sleep(0.01)
    assert peer.info().reconnects >= 1
    with agent.read(peer, "request", [3], [0], 10.0) as transfer:
        transfer.wait()
    assert all((tokens_of(tensor, kv.NHD, [3]) == 7.0).all() for tensor in tensors)
    assert second.call("stats")


def test_a_reader_that_dies_leaves_a_lease_that_ends(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("decode-9")
    producer = start_agent("prefill-9")
    from kv_worker import cache

    producer.register_kv(cache(BLOCKS, 8, kv.NHD, "host"), kv.KvLayout(kv.NHD))
    assert worker.call("connect", producer.endpoint) == "prefill-9"
    producer.grant("request", [1, 2], ["decode-9"], 0.5)
    worker.kill()
    limit = time.monotonic() + 20
    events: list[kv.LeaseEvent] = []
    while not (events := producer.lease_events()):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert (events[0].end, events[0].blocks) == ("expired", (1, 2))


def test_an_unreachable_endpoint_is_an_error_at_the_deadline(tmp_path: Path, start_agent: StartAgent) -> None:
    agent = start_agent("decode-0")
    with pytest.raises(kv.KvPeerError, match="nobody"):
        agent.connect(f"unix:{tmp_path}/nobody.sock", 0.3)
    with pytest.raises((kv.KvPeerError, ValueError)):
        agent.connect("carrier-pigeon:7", 0.3)


def test_closed_agents_say_so(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    transfer = agent.read(peer, "request", [0], [0], 10.0)
    agent.close()
    agent.close()
    with pytest.raises(kv.KvClosedError, match="agent 'decode-0' is closed"):
        agent.read(peer, "request", [0], [0], 1.0)
    with pytest.raises(kv.KvClosedError):
        transfer.status()
    assert "closed" in repr(agent)


def test_a_forked_child_has_a_closed_agent(start_agent: StartAgent) -> None:
    agent, _ = consumer(start_agent)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            agent.connect(agent.endpoint, 1.0)
            outcome = b"worked"
        except kv.KvError as error:
            outcome = type(error).__name__.encode()
        except BaseException as error:
            outcome = repr(error).encode()
        os.write(writer, outcome)
        os._exit(0)
    os.close(writer)
    outcome = os.read(reader, 4096)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    assert outcome == b"KvClosedError"
    assert agent.healthy()[0]


def test_health_statistics_and_dumps(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker, agent, transfer, _ = stopped_read(start_worker, start_agent, 60.0)
    dump = agent.dump_in_flight()
    assert "prefill-0" in dump
    text = agent.prometheus()
    assert "# TYPE" in text
    assert all(line.startswith("#") or " " in line for line in text.splitlines() if line)
    stats = agent.stats()
    assert stats
    worker.kill()
    with pytest.raises(kv.KvPeerLostError):
        transfer.wait(20)
    until_released(transfer)
    assert "peer_lost" in agent.prometheus()
