# SPDX-License-Identifier: Apache-2.0
"""KV transfer between prefill and decode processes: agents, leases, transfers, layouts.

agent = Agent("decode-0")
agent.register_kv(kv_tensors, KvLayout(NHD))
peer = agent.connect(endpoint)
with agent.read(peer, ticket, local_blocks, deadline=2.0) as transfer:
    transfer.wait()
"""

from __future__ import annotations

from .agent import Agent
from .config import AgentConfig
from .descriptors import Descriptors
from .errors import (
    KvBusyError,
    KvCancelledError,
    KvClosedError,
    KvDeadlineError,
    KvError,
    KvLayoutError,
    KvLeaseExpiredError,
    KvPeerError,
    KvPeerLostError,
    KvTimeoutError,
    KvTransferError,
)
from .layout import (
    BLOCK_FIRST,
    BLOCK_FIRST_HND,
    CROSS_LAYER,
    CROSS_LAYER_HND,
    HND,
    KV_FIRST,
    KV_FIRST_HND,
    MLA,
    NHD,
    BoundLayout,
    KvLayout,
    Region,
    choose_sources,
    static_cache_layers,
)
from .lease import Lease, LeaseEvent, LeaseTicket
from .memory import RegisteredMemory
from .peer import Peer, PeerInfo, PeerRegion
from .pool import shared_pool
from .transfer import Transfer, TransferStatus, TransferTimes

__all__ = [
    "BLOCK_FIRST",
    "BLOCK_FIRST_HND",
    "CROSS_LAYER",
    "CROSS_LAYER_HND",
    "HND",
    "KV_FIRST",
    "KV_FIRST_HND",
    "MLA",
    "NHD",
    "Agent",
    "AgentConfig",
    "BoundLayout",
    "Descriptors",
    "KvBusyError",
    "KvCancelledError",
    "KvClosedError",
    "KvDeadlineError",
    "KvError",
    "KvLayout",
    "KvLayoutError",
    "KvLeaseExpiredError",
    "KvPeerError",
    "KvPeerLostError",
    "KvTimeoutError",
    "KvTransferError",
    "Lease",
    "LeaseEvent",
    "LeaseTicket",
    "Peer",
    "PeerInfo",
    "PeerRegion",
    "Region",
    "RegisteredMemory",
    "Transfer",
    "TransferStatus",
    "TransferTimes",
    "choose_sources",
    "shared_pool",
    "static_cache_layers",
]
