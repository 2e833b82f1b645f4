# SPDX-License-Identifier: Apache-2.0
"""How long a read goes on after its peer was killed, by the size of the peer's pool."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from libtorch_neuronx_lite import kv

from .kv_peers import Target


def serve_private_pool(connection: Connection, size: int, bind: str) -> None:
    """An agent over TCP with memory that no other process maps: the kernel takes it apart before it closes sockets."""
    memory = torch.ones(size, dtype=torch.uint8)
    with kv.Agent("pool", kv.AgentConfig(bind=bind, providers=["tcp"])) as agent:
        agent.register([memory])
        connection.send((True, {"endpoint": agent.endpoint}))
        with contextlib.suppress(EOFError):
            while True:
                connection.recv()


def killed_peer_seconds(size: int, bind: str) -> float:
    """From SIGKILL of a peer with a pool of `size` bytes to the failure of a read from it, as its waiter sees it.

    With an empty `bind` the agents meet on a Unix socket; over TCP only the end of the connection tells that it died.
    """
    target = Target(serve_private_pool, size, bind)
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    with kv.Agent("survivor", kv.AgentConfig(providers=["tcp"])) as agent:
        region = agent.register([memory]).indices[0]
        peer = agent.connect(target.hello["endpoint"])
        runs = np.array([[peer.regions()[0].index, region, 0, 0, 1 << 20, 0, 0, 1]], np.uint64)
        with agent.prepare_read(peer, runs) as transfer:
            transfer.post(30.0)
            transfer.wait()
            pid = target.process.pid or 0
            os.kill(pid, signal.SIGSTOP)  # so that the read is under way when the peer dies
            while not _stopped(pid):
                time.sleep(0.001)
            transfer.post(30.0)
            time.sleep(0.01)
            started = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            try:
                transfer.wait()
            except kv.KvPeerLostError:
                return time.perf_counter() - started
            finally:
                target.process.join(10)
    raise RuntimeError("the read from a killed peer was done")


def _stopped(pid: int) -> bool:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)
