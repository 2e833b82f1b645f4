# SPDX-License-Identifier: Apache-2.0
"""An agent with a KV cache in a process of its own, driven by a test over a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from libtorch_neuronx_lite import kv

LAYERS, HEADS, WIDTH = 2, 2, 64


def cache(blocks: int, tokens: int, axes: str, pool: str, value: float | None = None) -> list[torch.Tensor]:
    """K and V of every layer in the order of `axes`, in memory of kind `pool`: host, shared, neuron."""
    sizes = {"block": blocks, "token": tokens, "head": HEADS, "channel": WIDTH}
    shape = [sizes[axis] for axis in axes.split()]
    tensors = []
    for index in range(2 * LAYERS):
        content = torch.full(shape, value) if value is not None else pattern(blocks, tokens, axes, index)
        if pool == "shared":
            tensor = kv.shared_pool(shape, torch.float32)
            tensor.copy_(content)
        else:
            tensor = content.to("neuron:0") if pool == "neuron" else content
        tensors.append(tensor)
    return tensors


def pattern(blocks: int, tokens: int, axes: str, index: int) -> torch.Tensor:
    """A different number in every element of every tensor, the same for every order of axes."""
    count = blocks * tokens * HEADS * WIDTH
    flat = torch.arange(count, dtype=torch.float32) + index * count
    canonical = flat.view(blocks, tokens, HEADS, WIDTH)
    return canonical.permute([kv.NHD.split().index(axis) for axis in axes.split()]).contiguous()


def tokens_of(tensor: torch.Tensor, axes: str, blocks: Sequence[int]) -> torch.Tensor:
    """[token, head, channel] of the listed blocks."""
    order = [axes.split().index(axis) for axis in kv.NHD.split()]
    return tensor.cpu().permute(order)[list(blocks)].flatten(0, 1)


class Worker:
    """What runs in the other process: every public method can be called through `WorkerProcess`."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        *,
        blocks: int = 16,
        tokens: int = 8,
        axes: str = kv.NHD,
        pool: str = "host",
        value: float | None = None,
        layout: dict[str, Any] | None = None,
    ) -> None:
        self.axes = axes
        self.agent = kv.Agent(name, kv.AgentConfig(**config))
        self.tensors = cache(blocks, tokens, axes, pool, value)
        self.memory = self.agent.register_kv(self.tensors, kv.KvLayout(axes, **(layout or {})))
        self.leases: dict[str, kv.Lease] = {}

    def endpoint(self) -> str:
        return self.agent.endpoint

    def grant(self, request: str, blocks: list[int], readers: list[str], ttl: float, **options: Any) -> str:
        self.leases[request] = self.agent.grant(request, blocks, readers, ttl, **options)
        return self.leases[request].ticket.to_json()

    def renew(self, request: str, ttl: float) -> None:
        self.leases[request].renew(ttl)

    def release(self, request: str, reason: str) -> None:
        self.leases[request].release(reason)

    def events(self) -> list[kv.LeaseEvent]:
        return self.agent.lease_events()

    def fill(self, value: float) -> None:
        for tensor in self.tensors:
            tensor.fill_(value)

    def contents(self, blocks: list[int]) -> list[torch.Tensor]:
        return [tokens_of(tensor, self.axes, blocks) for tensor in self.tensors]

    def connect(self, endpoint: str) -> str:
        return self.agent.connect(endpoint).name

    def read(self, peer: str, ticket: str, blocks: list[int]) -> kv.TransferStatus:
        found = self.agent.peer(peer)
        assert found is not None
        with self.agent.read(found, kv.LeaseTicket.from_json(ticket), blocks) as transfer:
            return transfer.wait(20)

    def notify(self, peer: str, payload: bytes) -> None:
        found = self.agent.peer(peer)
        assert found is not None
        found.notify(payload)

    def notifications(self) -> list[tuple[str, bytes]]:
        return self.agent.notifications()

    def peers(self) -> list[kv.PeerInfo]:
        return [peer.info() for peer in self.agent.peers()]

    def deregister(self) -> None:
        self.memory.deregister()

    def stats(self) -> dict[str, Any]:
        return self.agent.stats()

    def close(self) -> None:
        self.agent.close()


def serve(connection: Connection, arguments: dict[str, Any]) -> None:
    """The main function of the other process: calls until the pipe closes; exceptions travel back."""
    worker: Worker | None = None
    try:
        worker = Worker(**arguments)
        connection.send((True, worker.endpoint()))
    except Exception as error:
        connection.send((False, error))
    while worker is not None:
        try:
            name, values, keywords = connection.recv()
        except EOFError:
            break
        try:
            connection.send((True, getattr(worker, name)(*values, **keywords)))
        except Exception as error:
            connection.send((False, error))
    if worker is not None:
        worker.close()


class WorkerProcess:
    """The other process from a test's side; `worker.call("grant", ...)` runs a method of `Worker` there."""

    def __init__(self, name: str, config: dict[str, Any] | None = None, **arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, {"name": name, "config": config or {}, **arguments}), daemon=True
        )
        self.process.start()
        theirs.close()
        self.endpoint: str = self._result(60)

    def call(self, method: str, *values: Any, timeout: float = 30, **keywords: Any) -> Any:
        self._connection.send((method, values, keywords))
        return self._result(timeout)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            self._wait_until_stopped(self.process.pid)

    @staticmethod
    def _wait_until_stopped(pid: int) -> None:
        """SIGSTOP is not immediate: a thread on another CPU goes on until it next enters the kernel."""
        limit = time.monotonic() + 20
        while any(
            stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")
        ):
            assert time.monotonic() < limit, f"process {pid} does not stop"
            time.sleep(0.001)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(20)

    def stop(self) -> None:
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
            self._connection.close()
            self.process.join(20)
        if self.process.is_alive():
            self.kill()
        self.process.close()

    def _result(self, timeout: float) -> Any:
        assert self._connection.poll(timeout), "the other process did not answer"
        good, value = self._connection.recv()
        if not good:
            raise value
        return value
