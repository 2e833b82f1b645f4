# SPDX-License-Identifier: Apache-2.0
"""The movers that `benchmarks.kv` compares: each pulls blocks of another process's pool into its own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch

from libtorch_neuronx_lite import kv

POOL_BYTES = 256 << 20
Indices = Any  # int64 arrays of block numbers


class Mover(Protocol):
    """One peer of the comparison."""

    name: str

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """What reads those blocks once, from the request to the last byte, as a serving stack would each time."""

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """What reads one block, prepared before: post to done."""


class Target:
    """A process that holds a pool and serves it as `serve` does; its first message is what movers need to know."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(120):
            raise RuntimeError(f"{serve.__name__} did not start")
        good, self.hello = self.connection.recv()
        if not good:
            raise RuntimeError(self.hello)

    @contextlib.contextmanager
    def spinning(self) -> Iterator[None]:
        """Lets the target's progress loop run, for movers that need the other side's CPU."""
        self.connection.send("spin")
        try:
            yield
        finally:
            self.connection.send("rest")

    def stop(self) -> None:
        """Ends the process."""
        self.connection.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def pool(fill: bool) -> torch.Tensor:
    """A pool in a memfd; the source's has a different number in every 8 bytes."""
    memory = kv.shared_pool((POOL_BYTES,), torch.uint8)
    words = memory.view(torch.int64)
    if fill:
        torch.arange(len(words), out=words)
    else:
        words.fill_(1).zero_()  # touches every page
    return memory


def serve_agent(connection: Connection) -> None:
    """Our agents, one for each way, and the same memory for process_vm_readv and memcpy."""
    memory = pool(True)
    with kv.Agent("target") as local, kv.Agent("target-tcp", kv.AgentConfig(providers=["tcp"])) as remote:
        for agent in (local, remote):
            agent.register([memory])
        from libtorch_neuronx_lite.kv.pool import exported_range

        connection.send(
            (
                True,
                {
                    "shm": local.endpoint,
                    "tcp": remote.endpoint,
                    "pid": os.getpid(),
                    "address": memory.data_ptr(),
                    "fd": exported_range(memory.data_ptr(), POOL_BYTES)[0],
                },
            )
        )
        with contextlib.suppress(EOFError):
            while True:
                connection.recv()


def serve_nixl(connection: Connection, transports: str) -> None:
    """NIXL, with its default transports or with the given ones."""
    try:
        agent, memory = _nixl_agent("target", transports)
        memory.view(torch.int64).copy_(torch.arange(POOL_BYTES // 8))
        connection.send((True, {"metadata": agent.get_agent_metadata(), "address": memory.data_ptr()}))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))
        return
    spinning = False
    with contextlib.suppress(EOFError):
        while True:
            if spinning and not connection.poll(0):
                agent.get_new_notifs()  # progress
            else:
                spinning = connection.recv() == "spin"


def serve_mooncake(connection: Connection) -> None:
    """Mooncake's transfer engine over TCP, the only transport that this class of machine has."""
    try:
        engine, memory = _mooncake_engine()
        memory.view(torch.int64).copy_(torch.arange(POOL_BYTES // 8))
        port = engine.get_rpc_port()
        connection.send((True, {"segment": f"127.0.0.1:{port}", "address": memory.data_ptr()}))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))
        return
    with contextlib.suppress(EOFError):
        while True:
            connection.recv()


class AgentMover:
    """This runtime."""

    def __init__(self, target: Target, provider: str, threads: int = 1) -> None:
        self.name = f"kv {provider}" + (f", {threads} threads" if threads > 1 else "")
        self.memory = pool(False)
        self.agent = kv.Agent(
            f"initiator-{provider}-{threads}",
            kv.AgentConfig(providers=["tcp"] if provider == "tcp" else [], copy_threads=threads),
        )
        self._region = self.agent.register([self.memory]).indices[0]
        self.peer = self.agent.connect(target.hello[provider])
        chosen = self.peer.info().providers
        if not chosen or chosen[0] != provider:
            raise RuntimeError(f"the peer is reached by {chosen}, not by {provider}")
        self._remote = self.peer.regions()[0].index

    def runs(self, block_bytes: int, local: Indices, remote: Indices) -> Any:
        """The native table of runs."""
        runs = np.zeros((len(local), 8), np.uint64)
        runs[:, 0], runs[:, 1] = self._remote, self._region
        runs[:, 2], runs[:, 3] = remote * block_bytes, local * block_bytes
        runs[:, 4], runs[:, 7] = block_bytes, 1
        return runs

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """A new transfer each time."""
        runs = self.runs(block_bytes, local, remote)

        def once() -> None:
            with self.agent.prepare_read(self.peer, runs) as transfer:
                transfer.post(30.0)
                transfer.wait()

        return once

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """One transfer, posted again and again."""
        transfer = self.agent.prepare_read(self.peer, self.runs(block_bytes, np.array([local]), np.array([remote])))

        def once() -> None:
            transfer.post(30.0)
            while not transfer.done():
                pass

        return once


class NixlMover:
    """NIXL through its own Python methods."""

    def __init__(self, target: Target, transports: str) -> None:
        self.name = "nixl tcp" if transports else "nixl"
        self._agent, self.memory = _nixl_agent("initiator", transports)
        self._target = target
        self._remote_agent = self._agent.add_remote_agent(target.hello["metadata"])
        self._lists: dict[int, tuple[Any, Any]] = {}

    def _prepped(self, block_bytes: int) -> tuple[Any, Any]:
        if block_bytes not in self._lists:
            offsets = np.arange(0, POOL_BYTES, block_bytes, dtype=np.uint64)

            def rows(base: int) -> Any:
                return np.stack(
                    [offsets + np.uint64(base), np.full_like(offsets, block_bytes), np.zeros_like(offsets)], axis=1
                )

            with self._target.spinning():
                self._lists[block_bytes] = (
                    self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows(self.memory.data_ptr()), "DRAM"),
                    self._agent.prep_xfer_dlist(self._remote_agent, rows(self._target.hello["address"]), "DRAM"),
                )
        return self._lists[block_bytes]

    def _run(self, handle: Any) -> None:
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL: {state}")

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """make_prepped_xfer, transfer, poll, release."""
        ours, theirs = self._prepped(block_bytes)
        mine, other = local.astype(np.int32), remote.astype(np.int32)

        def once() -> None:
            with self._target.spinning():
                handle = self._agent.make_prepped_xfer("READ", ours, mine, theirs, other)
                self._run(handle)
                self._agent.release_xfer_handle(handle)

        return once

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """transfer and poll of one handle."""
        ours, theirs = self._prepped(block_bytes)
        handle = self._agent.make_prepped_xfer(
            "READ", ours, np.array([local], np.int32), theirs, np.array([remote], np.int32)
        )
        return lambda: self._run(handle)


class MooncakeMover:
    """Mooncake's batch read."""

    name = "mooncake tcp"

    def __init__(self, target: Target) -> None:
        self._engine, self.memory = _mooncake_engine()
        self._target = target.hello

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """batch_transfer_sync_read in pieces that its queue takes."""
        mine = (self.memory.data_ptr() + local * block_bytes).tolist()
        other = (self._target["address"] + remote * block_bytes).tolist()

        def once() -> None:
            for first in range(0, len(mine), 512):
                part = slice(first, first + 512)
                lengths = [block_bytes] * len(mine[part])
                code = self._engine.batch_transfer_sync_read(self._target["segment"], mine[part], other[part], lengths)
                if code:
                    raise RuntimeError(f"Mooncake: {code}")

        return once

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """transfer_sync_read of one block."""
        mine = self.memory.data_ptr() + local * block_bytes
        other = self._target["address"] + remote * block_bytes
        return lambda: self._engine.transfer_sync_read(self._target["segment"], mine, other, block_bytes)


class VmReadMover:
    """process_vm_readv, 1024 pieces a call."""

    name = "process_vm_readv"

    def __init__(self, target: Target) -> None:
        self.memory = pool(False)
        self._target = target.hello
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t
        self._call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong]
        self._call.argtypes.append(ctypes.c_ulong)

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """The iovecs are built before."""

        def vectors(base: int, blocks: Indices) -> Any:
            table = np.empty((len(blocks), 2), np.uint64)
            table[:, 0], table[:, 1] = base + blocks * block_bytes, block_bytes
            return table

        mine = vectors(self.memory.data_ptr(), local)
        other = vectors(self._target["address"], remote)

        def once() -> None:
            for first in range(0, len(mine), 1024):
                count = min(1024, len(mine) - first)
                at = first * 16
                moved = self._call(self._target["pid"], mine.ctypes.data + at, count, other.ctypes.data + at, count, 0)
                if moved != count * block_bytes:
                    raise OSError(ctypes.get_errno(), "process_vm_readv")

        return once

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """One call."""
        return self.prepare(block_bytes, np.array([local]), np.array([remote]))


class MemcpyMover:
    """memcpy from a mapping of the other process's pool, one thread: gathers scattered blocks into neighbours."""

    name = "memcpy"

    def __init__(self, target: Target) -> None:
        self.memory = pool(False)
        path = f"/proc/{target.hello['pid']}/fd/{target.hello['fd']}"
        self._source = np.memmap(path, np.uint8, "r", shape=(POOL_BYTES,))

    def prepare(self, block_bytes: int, local: Indices, remote: Indices) -> Callable[[], None]:
        """numpy.take calls memmove for each block."""
        source = self._source.reshape(-1, block_bytes)
        result = self.memory.numpy()[: len(remote) * block_bytes].reshape(-1, block_bytes)
        return lambda: _take(source, remote, result)

    def repeat(self, block_bytes: int, local: int, remote: int) -> Callable[[], None]:
        """memmove through ctypes."""
        source = self._source.ctypes.data + remote * block_bytes
        result = self.memory.data_ptr() + local * block_bytes
        return lambda: _memmove(result, source, block_bytes)


def _take(source: Any, blocks: Indices, result: Any) -> None:
    source.take(blocks, axis=0, out=result, mode="clip")


def _memmove(result: int, source: int, count: int) -> None:
    ctypes.memmove(result, source, count)


def _nixl_agent(name: str, transports: str) -> tuple[Any, torch.Tensor]:
    api = None
    for module in ("nixl._api", "nixl_cu12._api", "nixl_cu13._api"):
        with contextlib.suppress(ImportError):
            api = importlib.import_module(module)
            break
    if api is None:
        raise ImportError("nixl is not installed; pip install nixl-cu12")
    before = os.environ.get("UCX_TLS")
    if transports:
        os.environ["UCX_TLS"] = transports
    # Without its progress thread: the fastest setting where two processes share two cores.
    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    memory = torch.zeros(POOL_BYTES, dtype=torch.uint8)
    agent.register_memory(agent.get_reg_descs([(memory.data_ptr(), POOL_BYTES, 0, "")], "DRAM"))
    if transports:
        os.environ.pop("UCX_TLS")
        if before is not None:
            os.environ["UCX_TLS"] = before
    return agent, memory


def _mooncake_engine() -> tuple[Any, torch.Tensor]:
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise RuntimeError("Mooncake's engine did not start")
    memory = torch.zeros(POOL_BYTES, dtype=torch.uint8)
    if engine.register_memory(memory.data_ptr(), POOL_BYTES):
        raise RuntimeError("Mooncake did not register the pool")
    return engine, memory


def timed(call: Callable[[], None]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
