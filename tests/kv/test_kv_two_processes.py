# SPDX-License-Identifier: Apache-2.0
"""READ, WRITE, leases and notifications between two real processes, over every provider of one host."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kv_worker import HEADS, LAYERS, WIDTH, WorkerProcess, cache, pattern, tokens_of

from libtorch_neuronx_lite import kv

StartWorker = Callable[..., WorkerProcess]
StartAgent = Callable[..., kv.Agent]
PROVIDERS = [("shm", "shared"), ("cma", "host"), ("tcp", "host")]


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """The first true value of `condition`."""
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.01)
    return value


def consumer(start_agent: StartAgent, axes: str = kv.NHD, pool: str = "host", **options: Any) -> Any:
    """An agent in this process with an empty cache of 16 blocks of 8 tokens: (agent, tensors)."""
    agent = start_agent("decode-0", **options)
    tensors = cache(16, 8, axes, pool, 0.0)
    agent.register_kv(tensors, kv.KvLayout(axes))
    return agent, tensors


@pytest.mark.parametrize(("provider", "pool"), PROVIDERS)
def test_read_between_two_layouts(start_worker: StartWorker, start_agent: StartAgent, provider: str, pool: str) -> None:
    # The producer has blocks of 4 tokens, NHD; the consumer blocks of 8, HND. The prompt has 27 tokens.
    worker = start_worker("prefill-0", {"providers": [provider]}, blocks=32, tokens=4, pool=pool)
    agent, tensors = consumer(start_agent, kv.HND, providers=[provider])
    peer = agent.connect(worker.endpoint)
    theirs, ours = [9, 3, 4, 30, 0, 31, 17], [5, 6, 1, 2]
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "request", theirs, ["decode-0"], 20.0, tokens=(0, 27)))
    with agent.read(peer, ticket, ours, deadline=10.0) as transfer:
        status = transfer.wait()
        times = transfer.times()
    assert (status.state, status.cause, status.quiesced) == ("done", "none", True)
    assert status.bytes_done == 27 * HEADS * WIDTH * 4 * 2 * LAYERS
    assert (times.provider, times.bytes) == (provider, status.bytes_done)
    for expected, tensor in zip(worker.call("contents", theirs), tensors, strict=True):
        torch.testing.assert_close(tokens_of(tensor, kv.HND, ours)[:27], expected[:27], rtol=0, atol=0)
        assert not tokens_of(tensor, kv.HND, ours)[27:].any()
        untouched = [block for block in range(16) if block not in ours]
        assert not tokens_of(tensor, kv.HND, untouched).any()
    event = wait_for(lambda: worker.call("events"))[0]
    assert (event.request, event.end, list(event.blocks)) == ("request", "read", theirs)


@pytest.mark.parametrize(("provider", "pool"), PROVIDERS)
def test_write_reaches_the_peer_and_tells_it(
    start_worker: StartWorker, start_agent: StartAgent, provider: str, pool: str
) -> None:
    worker = start_worker("decode-9", {"providers": [provider]}, pool=pool, value=0.0)
    agent, tensors = consumer(start_agent, kv.HND, pool=pool, providers=[provider])
    for index, tensor in enumerate(tensors):
        tensor.copy_(torch.randn(tensor.shape) + index)
    peer = agent.connect(worker.endpoint)
    with agent.write(peer, "request", [4, 2], [7, 11], 10.0, notification=b"all there") as transfer:
        assert transfer.wait().state == "done"
    assert wait_for(lambda: worker.call("notifications")) == [("decode-0", b"all there")]
    for arrived, tensor in zip(worker.call("contents", [7, 11]), tensors, strict=True):
        torch.testing.assert_close(arrived, tokens_of(tensor, kv.HND, [4, 2]), rtol=0, atol=0)
    assert not any(tensor.any() for tensor in worker.call("contents", [0, 6, 8, 10, 12]))


def test_device_tensors_are_read_and_the_provider_is_chosen(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0", pool="neuron")
    agent, tensors = consumer(start_agent, pool="neuron")
    peer = agent.connect(worker.endpoint)
    assert peer.info().providers
    with agent.read(peer, "request", [1, 2], [3, 4], 10.0) as transfer:
        transfer.wait()
        assert transfer.times().provider in peer.info().providers
    for expected, tensor in zip(worker.call("contents", [3, 4]), tensors, strict=True):
        torch.testing.assert_close(tokens_of(tensor, kv.NHD, [1, 2]), expected, rtol=0, atol=0)


def test_tensor_parallel_ranks_of_another_number(start_worker: StartWorker, start_agent: StartAgent) -> None:
    # Two producer ranks of two heads each, one consumer rank of four.
    ranks = [
        start_worker(f"prefill-{rank}", layout={"total_heads": 2 * HEADS, "tp_rank": rank, "tp_size": 2})
        for rank in range(2)
    ]
    agent = start_agent("decode-0")
    tensors = [torch.zeros(16, 8, 2 * HEADS, WIDTH) for _ in range(2 * LAYERS)]
    agent.register_kv(tensors, kv.KvLayout(kv.NHD))
    peers = [agent.connect(worker.endpoint) for worker in ranks]
    for peer in peers:
        with agent.read(peer, "request", [0, 1], [2, 3], 10.0) as transfer:
            transfer.wait()
    for rank, worker in enumerate(ranks):
        for expected, tensor in zip(worker.call("contents", [2, 3]), tensors, strict=True):
            mine = tokens_of(tensor, kv.NHD, [0, 1])[:, rank * HEADS : (rank + 1) * HEADS]
            torch.testing.assert_close(mine, expected, rtol=0, atol=0)


def test_an_empty_range_completes_and_ends_the_lease(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "hit", [1], ["decode-0"], 20.0))
    with agent.read(peer, ticket, [0], deadline=5.0, tokens=(8, 8)) as transfer:
        assert transfer.wait().bytes_done == 0
    assert wait_for(lambda: worker.call("events"))[0].end == "read"


def test_a_file_descriptor_and_asyncio_tell_the_end(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    with agent.read(peer, "one", [0], [0], 10.0) as transfer:
        assert select.select([transfer], [], [], 10)[0] == [transfer]
        assert transfer.done()

    async def read() -> kv.TransferStatus:
        with agent.read(peer, "two", list(range(16)), list(range(16)), 10.0) as transfer:
            return await asyncio.wait_for(transfer.finished(), 10)

    assert asyncio.run(read()).state == "done"


def test_notifications_arrive_once_and_in_order(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    sent = [f"number {index}".encode() for index in range(200)]
    for payload in sent:
        peer.notify(payload)
    worker.call("notify", "decode-0", b"\x00back\xff")
    arrived: list[tuple[str, bytes]] = []
    wait_for(lambda: arrived.extend(worker.call("notifications")) or len(arrived) >= len(sent))
    assert arrived == [("decode-0", payload) for payload in sent]
    assert wait_for(agent.notifications) == [("prefill-0", b"\x00back\xff")]


def test_an_expired_lease_fails_the_read(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "late", [1, 2], ["decode-0"], 0.05))
    event = wait_for(lambda: worker.call("events"))[0]
    assert (event.end, event.blocks) == ("expired", (1, 2))
    with (
        agent.read(peer, ticket, [0, 1], deadline=5.0) as transfer,
        pytest.raises(kv.KvLeaseExpiredError) as failure,
    ):
        transfer.wait()
    assert failure.value.cause == "lease_expired"
    assert failure.value.failed_tokens == ((0, 16),)
    assert worker.call("events") == []


def test_leases_are_renewed_released_and_finished_twice(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, _ = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    worker.call("grant", "renewed", [3], ["decode-0"], 0.3)
    worker.call("renew", "renewed", 30.0)
    time.sleep(0.5)
    assert worker.call("events") == []
    for _ in range(2):
        worker.call("release", "renewed", "request aborted")
    event = wait_for(lambda: worker.call("events"))[0]
    assert (event.end, event.reason, event.blocks) == ("released", "request aborted", (3,))

    # Two named readers: one that finishes twice does not stand for the other.
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "two", [4], ["decode-0", "decode-1"], 30.0))
    for _ in range(2):
        agent.finish_lease(peer, ticket)
    peer.notify(b"after both")
    wait_for(lambda: worker.call("notifications"))
    assert worker.call("events") == []
    other = start_agent("decode-1")
    other.finish_lease(other.connect(worker.endpoint), ticket)
    assert wait_for(lambda: worker.call("events"))[0].end == "read"
    assert worker.call("events") == []


def test_a_lease_is_for_named_readers_only(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0", {"providers": ["tcp"]})
    agent, _ = consumer(start_agent, providers=["tcp"])
    peer = agent.connect(worker.endpoint)
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "r", [1], ["decode-0"], 30.0))
    forged = kv.LeaseTicket.from_dict(ticket.to_dict() | {"generation": ticket.generation + 2})
    with agent.read(peer, forged, [0], deadline=5.0) as transfer, pytest.raises(kv.KvTransferError) as failure:
        transfer.wait()
    assert failure.value.cause in ("lease_expired", "refused")


def test_an_impossible_pair_is_a_connect_error(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent = start_agent("decode-0")
    wide = [torch.zeros(4, 8, HEADS, 2 * WIDTH) for _ in range(2 * LAYERS)]
    agent.register_kv(wide, kv.KvLayout(kv.NHD))
    with pytest.raises(kv.KvPeerError, match=r"head_dim .*64.*128|head_dim .*128.*64"):
        agent.connect(worker.endpoint, 5.0)


def test_bad_blocks_are_refused_before_anything_moves(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent, tensors = consumer(start_agent)
    peer = agent.connect(worker.endpoint)
    ticket = kv.LeaseTicket.from_json(worker.call("grant", "r", [0, 1], ["decode-0"], 20.0))
    for request, theirs in ((ticket, None), ("plain", [0, 1])):
        with pytest.raises(kv.KvLayoutError, match="block id 16 is outside the pool of 16 blocks"):
            agent.read(peer, request, [0, 16], theirs, deadline=1.0)
        with pytest.raises(kv.KvLayoutError, match="token 8 lies behind them"):
            agent.read(peer, request, [0], theirs, deadline=1.0, tokens=(0, 16))
    assert not any(tensor.any() for tensor in tensors)


def test_memory_is_busy_while_leased(start_worker: StartWorker, start_agent: StartAgent) -> None:
    agent, _ = consumer(start_agent)
    memory = next(iter(agent._registered))
    lease = agent.grant("request", [0], ["decode-1"], 30.0)
    with pytest.raises(kv.KvBusyError):
        memory.deregister()
    lease.release()
    wait_for(agent.lease_events)
    memory.deregister()


def test_two_hosts_need_a_key(tmp_path: Path, start_worker: StartWorker, start_agent: StartAgent) -> None:
    with pytest.raises(ValueError, match="key"):
        start_agent("open", bind="tcp:0.0.0.0:0")
    keys = {}
    for name, text in (("right", "0123456789abcdef0123456789abcdef"), ("wrong", "f" * 32)):
        keys[name] = tmp_path / name
        keys[name].write_text(text)
        keys[name].chmod(0o600)
    worker = start_worker("prefill-0", {"bind": "tcp:127.0.0.1:0", "key_file": str(keys["right"])})
    agent, tensors = consumer(start_agent, bind="tcp:127.0.0.1:0", key_file=str(keys["right"]))
    peer = agent.connect(worker.endpoint)
    assert peer.info().providers == ("tcp",)
    with agent.read(peer, "request", [0], [5], 10.0) as transfer:
        transfer.wait()
    torch.testing.assert_close(tokens_of(tensors[0], kv.NHD, [0]), worker.call("contents", [5])[0], rtol=0, atol=0)
    stranger = start_agent("stranger", bind="tcp:127.0.0.1:0", key_file=str(keys["wrong"]))
    with pytest.raises(kv.KvPeerError, match=r"(?i)key|auth"):
        stranger.connect(worker.endpoint, 3.0)
    keys["right"].chmod(0o644)
    with pytest.raises(ValueError, match=r"(?i)mode|0600"):
        start_agent("careless", bind="tcp:0.0.0.0:0", key_file=str(keys["right"]))


def test_descriptors_by_index(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent = start_agent("decode-0")
    target = torch.zeros(64, 256, dtype=torch.uint8)
    memory = agent.register([target])
    peer = agent.connect(worker.endpoint)
    region = peer.regions()[0]
    remote = kv.Descriptors([(region.index, 0, 256, 512, 16)])  # every second 256 bytes of its first tensor
    local = kv.Descriptors([(memory.indices[0], row * 256, 256) for row in range(64)])
    assert (len(remote), len(local)) == (16, 64)
    with agent.prepare_indexed(peer, remote, [3, 0, 15], local, [63, 1, 2]) as transfer:
        transfer.post(20.0)
        transfer.wait()
        assert transfer.times().bytes == 3 * 256
    source = pattern(16, 8, kv.NHD, 0).flatten().view(torch.uint8)
    for theirs, ours in ((3, 63), (0, 1), (15, 2)):
        assert torch.equal(target[ours], source[theirs * 512 : theirs * 512 + 256])
    assert not target[3:63].any()
    with agent.prepare_indexed(peer, local, [5], remote, [1], write=True) as transfer:
        transfer.post(20.0)
        transfer.wait()
        assert transfer.times().ack > 0
    assert not worker.call("contents", [0])[0].flatten().view(torch.uint8)[512:768].any()
    for bad in ([64], [-1], [0.5], ["a"]):
        with pytest.raises(kv.KvLayoutError):
            agent.prepare_indexed(peer, remote, [0], local, bad)
    with pytest.raises(kv.KvLayoutError, match="row 1"):
        kv.Descriptors([(0, 0, 8), (0, 0, 0)])


def test_drain_is_over_with_resume(start_worker: StartWorker, start_agent: StartAgent) -> None:
    worker = start_worker("prefill-0")
    agent = start_agent("decode-0")
    agent.register_kv(cache(16, 8, kv.NHD, "host", 0.0), kv.KvLayout(kv.NHD))
    peer = agent.connect(worker.endpoint)
    agent.drain(5.0)
    assert "drains" in agent.healthy()[1]
    with pytest.raises(kv.KvClosedError, match="draining"):
        agent.read(peer, "request", [0], [0], 5.0)
    agent.resume()
    assert agent.healthy() == (True, "")
    with agent.read(peer, "request", [0], [0], 20.0) as transfer:
        transfer.wait()
