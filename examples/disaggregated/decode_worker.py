# SPDX-License-Identifier: Apache-2.0
"""A decode worker: reads a prompt's KV blocks from the prefill worker that has them and generates the answer.

python decode_worker.py NAME SOCKET
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from messages import serve
from paged_model import BlockPool, PagedModel

from libtorch_neuronx_lite import kv

READ_SECONDS = 2.0
CONNECT_SECONDS = 2.0


class DecodeWorker:
    """Local blocks are free again when no byte of the read can land any more."""

    def __init__(self, name: str) -> None:
        self.model, self.pool = PagedModel(), BlockPool()
        self.agent = kv.Agent(name)
        self.agent.register_kv(self.model.cache, kv.KvLayout("layer kv block token head channel"))
        self.peers: dict[str, kv.Peer] = {}

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """`decode` or `stats`. A KV transfer that failed is an answer with `kv_error`: the prompt must be redone."""
        if message["do"] != "decode":
            return {"free": self.pool.free}
        ticket = kv.LeaseTicket.from_dict(message["ticket"])
        assert ticket.tokens is not None
        length, limit = ticket.tokens[1], message["max_new_tokens"]
        blocks = self.pool.take(length + limit)
        try:
            await self.fetch(ticket, blocks)
            tokens = [message["token"]]
            for position in range(length, length + limit - 1):
                tokens.append(await asyncio.to_thread(self.model.forward, tokens[-1:], position, blocks))
            return {"tokens": tokens}
        except kv.KvError as error:
            return {"kv_error": str(error), "cause": getattr(error, "cause", "unreachable")}
        finally:
            self.pool.give_back(blocks)

    async def fetch(self, ticket: kv.LeaseTicket, blocks: list[int]) -> None:
        """Reads the leased blocks; when it returns or raises, nothing is in flight."""
        if ticket.endpoint not in self.peers:
            self.peers[ticket.endpoint] = await asyncio.to_thread(self.agent.connect, ticket.endpoint, CONNECT_SECONDS)
        with self.agent.read(self.peers[ticket.endpoint], ticket, blocks, deadline=READ_SECONDS) as transfer:
            await transfer.finished()


async def main(name: str, socket: str) -> None:
    """Serves until it is ended."""
    await serve(socket, DecodeWorker(name).handle)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
