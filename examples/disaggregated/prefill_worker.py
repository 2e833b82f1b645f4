# SPDX-License-Identifier: Apache-2.0
"""A prefill worker: computes a prompt's KV blocks and leases them to the decode worker that will read them.

python prefill_worker.py NAME SOCKET
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from messages import serve
from paged_model import BlockPool, PagedModel

from libtorch_neuronx_lite import kv

LEASE_SECONDS = 5.0


class PrefillWorker:
    """Blocks are free again when the lease's event says so: read, expired or released, never before."""

    def __init__(self, name: str) -> None:
        self.model, self.pool = PagedModel(), BlockPool()
        self.agent = kv.Agent(name)
        self.agent.register_kv(self.model.cache, kv.KvLayout("layer kv block token head channel"))
        self.leases: dict[str, kv.Lease] = {}

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """`prefill`, `release` or `stats`."""
        if message["do"] == "prefill":
            return await asyncio.to_thread(self.prefill, message["request"], message["prompt"], message["reader"])
        if message["do"] == "release" and message["request"] in self.leases:
            self.leases[message["request"]].release(message["reason"])
        return {"free": self.pool.free, "leases": len(self.leases)}

    def prefill(self, request: str, prompt: list[int], reader: str) -> dict[str, Any]:
        """The first token, and the ticket for the blocks behind it."""
        blocks = self.pool.take(len(prompt))
        try:
            token = self.model.forward(prompt, 0, blocks)
            lease = self.agent.grant(request, blocks, [reader], LEASE_SECONDS, tokens=(0, len(prompt)))
        except BaseException:
            self.pool.give_back(blocks)
            raise
        self.leases[request] = lease
        return {"token": token, "ticket": lease.ticket.to_dict()}

    async def reclaim(self) -> None:
        """Takes blocks back as their leases end."""
        while True:
            for event in self.agent.lease_events():
                self.pool.give_back(event.blocks)
                del self.leases[event.request]
            await asyncio.sleep(0.01)


async def main(name: str, socket: str) -> None:
    """Serves until it is ended."""
    worker = PrefillWorker(name)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.reclaim())
        tasks.create_task(serve(socket, worker.handle))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
