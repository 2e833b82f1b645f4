# SPDX-License-Identifier: Apache-2.0
"""Agent: registers KV memory, meets peers, grants leases, moves blocks."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from .config import AgentConfig, milliseconds
from .descriptors import Descriptors, index_array
from .errors import KvClosedError, KvError, KvLayoutError, KvPeerError, status_error
from .layout import BoundLayout, KvLayout, KvTensors, Region
from .lease import Lease, LeaseEvent, LeaseTicket, check_grant
from .memory import RegisteredMemory, whole_region
from .peer import Peer
from .plan import BlockList, common_tokens
from .pool import exported_range
from .transfer import Transfer

_MOST = 1024  # events or notifications per poll
_DRAIN_DEFAULT = 10.0
_agents: weakref.WeakSet[Agent] = weakref.WeakSet()  # of this process


def _disown() -> None:
    while _agents:
        agent = _agents.pop()
        agent._inherited, agent._native = agent._native, None


os.register_at_fork(after_in_child=_disown)


class Agent:
    """One engine's end of KV transfer; several may live in one process. Thread safe.

    As a context manager it is closed on the way out. After a fork the child's copy is closed.

    Args:
        name: unique among the agents that meet.
        config: addresses, security, limits; the defaults listen on a Unix socket in a private folder.

    Raises:
        ValueError: a bad configuration; the message names the field.
        KvError: the address cannot be bound.
    """

    def __init__(self, name: str, config: AgentConfig | None = None) -> None:
        self.name = name
        self._config = config or AgentConfig()
        self._registered: set[RegisteredMemory] = set()
        self._layout: BoundLayout | None = None
        try:
            self._native: _C.KvAgent | None = _C.KvAgent(name=name, **self._config.native_arguments())
        except ValueError:
            raise
        except RuntimeError as error:
            raise KvError(str(error)) from None
        self._inherited: _C.KvAgent | None = None  # set in a fork's child
        _agents.add(self)

    @property
    def native(self) -> _C.KvAgent:
        """The native agent.

        Raises:
            KvClosedError: `close` was called, or this process is a fork of the one that made the agent.
        """
        native = self._native
        if native is not None:
            return native
        if self._inherited is not None:
            raise KvClosedError(
                f"agent {self.name!r} belongs to the process that forked this one; make a new one here."
            )
        raise KvClosedError(f"agent {self.name!r} is closed.")

    @property
    def endpoint(self) -> str:
        """Where it listens, for the peer's `connect`."""
        return str(self.native.endpoint())

    @property
    def incarnation(self) -> str:
        """32 hexadecimal digits, random per agent."""
        return str(self.native.incarnation().hex())

    # Memory.

    def register_kv(self, tensors: KvTensors, layout: KvLayout) -> RegisteredMemory:
        """Make a KV cache reachable and describe it to all peers, present and future.

        Raises:
            KvLayoutError: the tensors do not fit the layout; the message names the tensor or the field.
        """
        bound = layout.bind(tensors)
        memory = self.register(bound.regions)
        try:
            self.native.describe_kv(bound.native, list(memory.indices))
        except (ValueError, RuntimeError) as error:
            memory.deregister()
            raise KvLayoutError(str(error)) from None
        self._layout = bound
        return memory

    def register(
        self, memory: Sequence[torch.Tensor | Region], *, readable: bool = True, writable: bool = True
    ) -> RegisteredMemory:
        """Make tensors (contiguous ones) or ranges of memory reachable, for transfers by runs.

        Args:
            memory: what to register; one region each, in order.
            readable: peers may READ from it.
            writable: peers may WRITE to it.
        """
        regions = [
            whole_region(item, f"memory[{index}]") if isinstance(item, torch.Tensor) else item
            for index, item in enumerate(memory)
        ]
        indices: list[int] = []
        try:
            for region in regions:
                fd, offset = exported_range(region.address, region.bytes)
                indices.append(
                    self.native.register_region(
                        address=region.address,
                        bytes=region.bytes,
                        name=region.name,
                        core=region.core,
                        fd=fd,
                        fd_offset=offset,
                        readable=readable,
                        writable=writable,
                    )
                )
        except (ValueError, RuntimeError) as error:
            RegisteredMemory(self, regions, indices).deregister()
            raise KvError(str(error)) from None
        registered = RegisteredMemory(self, regions, indices)
        self._registered.add(registered)
        return registered

    # Peers.

    def connect(self, endpoint: str, deadline: float = 10.0) -> Peer:
        """Meet the agent that listens at `endpoint`. From then on a lost session is opened again by itself.

        Raises:
            KvPeerError: it cannot be reached in `deadline` seconds, or a layout, key or version does not fit; the
                message names the field and both values.
        """
        try:
            return Peer(self, self.native.connect(endpoint, milliseconds(deadline, "deadline")))
        except KvError:
            raise
        except (ValueError, RuntimeError) as error:
            raise KvPeerError(str(error)) from None

    def peer(self, name: str) -> Peer | None:
        """Return the peer of that name, one that is up when there are several incarnations; None when unknown."""
        found = self.native.find_peer(name)
        return Peer(self, found) if found else None

    def peers(self) -> list[Peer]:
        """Return all peers, those that connected to us included."""
        return [Peer(self, native["id"]) for native in self.native.peers()]

    # Leases.

    def grant(
        self,
        request_id: str,
        blocks: Sequence[int],
        readers: Sequence[str],
        ttl: float = 30.0,
        tokens: tuple[int, int] | None = None,
        first_token: int = 0,
    ) -> Lease:
        """Keep blocks for named readers until all have finished, or `ttl` seconds are over.

        Args:
            request_id: the serving stack's name of the request.
            blocks: ids, in token order; they must not be written before the lease's event.
            readers: names of the agents that read.
            ttl: seconds from now.
            tokens: positions [begin, end) of the request that the blocks hold, for the ticket; None: all their slots.
            first_token: position of the first slot of the first block.

        Raises:
            KvError: a block is outside the pool, `tokens` is no range, or there are too many leases.
        """
        check_grant(readers, tokens)
        try:
            ticket = self.native.grant(request_id, list(blocks), list(readers), milliseconds(ttl, "ttl"))
        except KvError:
            raise
        except (ValueError, RuntimeError) as error:
            raise KvError(str(error)) from None
        return Lease(
            self,
            LeaseTicket(
                request=request_id,
                producer=self.name,
                endpoint=self.endpoint,
                blocks=tuple(int(block) for block in blocks),
                tokens=tokens,
                first_token=first_token,
                id=ticket["id"],
                key=ticket["key"].hex(),
                word=ticket["word"],
                generation=ticket["generation"],
            ),
            readers,
        )

    def lease_events(self, most: int = _MOST) -> list[LeaseEvent]:
        """Return the leases that have ended since the last call; only now may their blocks be used again."""
        return [
            LeaseEvent(event["id"], event["request"], event["end"], event["reason"], tuple(event["blocks"]))
            for event in self.native.poll_lease_events(most)
        ]

    def finish_lease(self, peer: Peer, ticket: LeaseTicket) -> None:
        """Tell the producer that this reader needs the lease no more, for one that was not read to the end."""
        code, message = self.native.finish_lease(peer.id, ticket.native())
        if code:
            raise status_error(code, message)

    # Transfers.

    def read(
        self,
        peer: Peer,
        request: str | LeaseTicket,
        local_blocks: Sequence[int],
        remote_blocks: Sequence[int] | None = None,
        deadline: float | None = None,
        *,
        tokens: tuple[int, int] | None = None,
        local_first_token: int = 0,
        remote_first_token: int | None = None,
        finish_lease: bool = True,
        zero_tail: bool = False,
        notification: bytes = b"",
    ) -> Transfer:
        """Pull KV blocks of a request from `peer` into ours, whatever the two layouts are. Returns at once.

        With a ticket the read is fenced: it is done only if the lease was valid until after the last byte. With a plain
        request id nothing is checked, and the caller answers for the peer's blocks staying as they are.

        Args:
            peer: the producer.
            request: the lease's ticket, or the request's name.
            local_blocks: our block ids, in token order.
            remote_blocks: the peer's block ids, in token order; the ticket's when None.
            deadline: seconds from now; the agent's default when None.
            tokens: positions [begin, end) of the request; the ticket's, else all that both lists hold, when None.
            local_first_token: position of the first slot of our first block.
            remote_first_token: the same for the peer's; the ticket's, else 0, when None.
            finish_lease: when done, tell the producer that this reader needs the lease no more.
            zero_tail: clear the slots behind the range in our last block.
            notification: reaches the peer after the data, and only if the transfer is done.

        Raises:
            KvLayoutError: a block list does not hold the range, or a block id is outside its pool.
            KvBusyError: a limit is reached; nothing was started.
        """
        ticket = request if isinstance(request, LeaseTicket) else None
        name = ticket.request if ticket else str(request)
        if remote_blocks is None:
            if ticket is None:
                raise ValueError("remote_blocks must be given for a read without a lease ticket.")
            remote_blocks = ticket.blocks
        remote_first = remote_first_token if remote_first_token is not None else ticket.first_token if ticket else 0
        local, remote = self._layouts(peer)
        ours, theirs = BlockList(local, local_blocks, local_first_token), BlockList(remote, remote_blocks, remote_first)
        begin, end = tokens or (ticket.tokens if ticket else None) or common_tokens(ours, theirs)
        try:
            prepared = self.native.prepare_kv_read(
                peer.id,
                ticket.native() if ticket else None,
                begin,
                end,
                list(remote_blocks),
                remote_first,
                list(local_blocks),
                local_first_token,
                finish_lease,
                zero_tail,
            )
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return self._posted(Transfer(self, peer, name, prepared), deadline, notification)

    def write(
        self,
        peer: Peer,
        request_id: str,
        local_blocks: Sequence[int],
        remote_blocks: Sequence[int],
        deadline: float | None = None,
        *,
        tokens: tuple[int, int] | None = None,
        local_first_token: int = 0,
        remote_first_token: int = 0,
        notification: bytes = b"",
    ) -> Transfer:
        """Push KV blocks of a request into the peer's; the peer's runtime carries it out by reading. As `read`."""
        local, remote = self._layouts(peer)
        begin, end = tokens or common_tokens(
            BlockList(local, local_blocks, local_first_token), BlockList(remote, remote_blocks, remote_first_token)
        )
        try:
            prepared = self.native.prepare_kv_write(
                peer.id, begin, end, list(local_blocks), local_first_token, list(remote_blocks), remote_first_token
            )
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return self._posted(Transfer(self, peer, request_id, prepared), deadline, notification)

    def prepare_read(self, peer: Peer, runs: Any, request_id: str = "", lease: LeaseTicket | None = None) -> Transfer:
        """Check a READ by runs, to be posted once or many times.

        Args:
            peer: whose memory is the source.
            runs: uint64 [n, 8]: source region (of the peer), target region (ours), source offset, target offset,
                bytes, source stride, target stride, count: `count` pieces of `bytes`.
            request_id: for logs.
            lease: fences the read.

        Raises:
            KvLayoutError: a run leaves its region.
        """
        try:
            prepared = self.native.prepare_read(peer.id, runs, lease.native() if lease else None)
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return Transfer(self, peer, request_id, prepared)

    def prepare_indexed(
        self,
        peer: Peer,
        source: Descriptors,
        source_indices: Sequence[int],
        target: Descriptors,
        target_indices: Sequence[int],
        request_id: str = "",
        *,
        write: bool = False,
    ) -> Transfer:
        """Check a READ, or a WRITE, of selected descriptors: those of `source` go to those of `target`, pair by pair.

        For a READ `source` lies in the peer's regions and `target` in ours, for a WRITE the other way about.

        Raises:
            KvLayoutError: an index is out of range, a pair is not equally long, or a descriptor leaves its region.
        """
        prepare = self.native.prepare_write_indexed if write else self.native.prepare_read_indexed
        pairs = source.native, index_array(source_indices), target.native, index_array(target_indices)
        try:
            prepared = prepare(peer.id, *pairs)
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return Transfer(self, peer, request_id, prepared)

    def prepare_write(self, peer: Peer, runs: Any, request_id: str = "") -> Transfer:
        """The same for a WRITE: source regions are ours, target regions the peer's."""
        try:
            prepared = self.native.prepare_write(peer.id, runs)
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return Transfer(self, peer, request_id, prepared)

    # Notifications, health, the end.

    def notifications(self, most: int = _MOST) -> list[tuple[str, bytes]]:
        """Return (peer's name, payload) of what has arrived since the last call."""
        return list(self.native.poll_notifications(most))

    def stats(self) -> dict[str, Any]:
        """Return counters and gauges as plain data."""
        stats: dict[str, Any] = json.loads(self.native.stats_json())
        return stats

    def prometheus(self) -> str:
        """Return the same in Prometheus' text format."""
        return str(self.native.prometheus())

    def dump_in_flight(self) -> str:
        """Return a line for each transfer that is in flight, for hangs."""
        return str(self.native.dump_in_flight())

    def healthy(self) -> tuple[bool, str]:
        """Return whether all is well, and what is not."""
        return self.native.healthy()

    def drain(self, timeout: float = _DRAIN_DEFAULT) -> None:
        """Take no new transfers, refuse the WRITEs of peers, and wait for what is in flight.

        It holds until `resume`, also after a time-out; `healthy` says so meanwhile. Peers may go on reading.

        Raises:
            KvTimeoutError: some still are.
        """
        code, message = self.native.drain(milliseconds(timeout, "timeout"))
        if code:
            raise status_error(code, message)

    def resume(self) -> None:
        """Take transfers again after `drain`."""
        self.native.resume()

    def close(self) -> None:
        """Fail what is in flight, wait until no byte can land, let go of memory and sockets. Repeating it is fine."""
        native = self._native
        if native is not None:
            native.close()
            self._native = None
            self._registered.clear()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {self.endpoint if self._native is not None else 'closed'})"

    def _posted(self, transfer: Transfer, deadline: float | None, notification: bytes) -> Transfer:
        try:
            transfer.post(deadline, notification)
        except KvError:
            transfer.release()
            raise
        return transfer

    def _layouts(self, peer: Peer) -> tuple[_C.KvLayout, _C.KvLayout]:
        if self._layout is None:
            raise KvLayoutError(f"agent {self.name!r} has no KV layout; call register_kv first.")
        found = peer.layout()
        if found is None:
            raise KvLayoutError(f"peer {peer.name!r} has described no KV layout; it must call register_kv.")
        return self._layout.native, found[0]
