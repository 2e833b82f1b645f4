# SPDX-License-Identifier: Apache-2.0
"""A peer: another agent, over reconnects and restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _C
from .errors import KvError, KvPeerError, status_error

if TYPE_CHECKING:
    from .agent import Agent

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class PeerInfo:
    """A peer at one moment.

    Attributes:
        name: of its agent; empty until the first handshake.
        endpoint: what `connect` was given; empty for a peer that connected to us.
        incarnation: 32 hexadecimal digits, other ones after a restart.
        state: `handshaking`, `up`, `suspect` (silent for a while) or `down`.
        why: it is not up.
        providers: that reach it, preferred first.
        reconnects: sessions after the first.
    """

    name: str
    endpoint: str
    incarnation: str
    state: str
    why: str
    providers: tuple[str, ...]
    reconnects: int


@dataclass(frozen=True)
class PeerRegion:
    """A region of a peer, as its metadata describes it. Addresses are of the peer's process."""

    index: int
    name: str
    address: int
    bytes: int
    core: int
    readable: bool
    writable: bool


class Peer:
    """Another agent. The object stays good over lost sessions and over a restart of the other process."""

    def __init__(self, agent: Agent, peer: int) -> None:
        self._agent = agent
        self.id = peer

    def info(self) -> PeerInfo:
        """Return its name, health and providers."""
        native: Mapping[str, Any] = self._agent.native.peer_info(self.id)
        return PeerInfo(
            name=native["name"],
            endpoint=native["endpoint"],
            incarnation=native["incarnation"].hex(),
            state=native["state"],
            why=native["why"],
            providers=tuple(native["providers"]),
            reconnects=native["reconnects"],
        )

    @property
    def name(self) -> str:
        """The name of its agent."""
        return self.info().name

    @property
    def state(self) -> str:
        """`handshaking`, `up`, `suspect` or `down`."""
        state: str = self._agent.native.peer_state(self.id)[0]
        return state

    @property
    def up(self) -> bool:
        """Whether transfers can be posted."""
        return self.state in ("up", "suspect")

    def regions(self) -> tuple[PeerRegion, ...]:
        """Return the regions it has registered.

        Raises:
            KvPeerError: it is not connected.
        """
        names = PeerRegion.__dataclass_fields__
        found = self._asked(self._agent.native.peer_regions)
        return tuple(PeerRegion(**{name: native[name] for name in names}) for native in found)

    def layout(self) -> tuple[_C.KvLayout, tuple[int, ...]] | None:
        """Return its KV layout and the region index of each of the layout's regions; None while it described none.

        Raises:
            KvPeerError: it is not connected.
        """
        found = self._asked(self._agent.native.peer_layout)
        return None if found is None else (found[0], tuple(found[1]))

    def _asked(self, question: Callable[[int], _Answer]) -> _Answer:
        try:
            return question(self.id)
        except KvError:
            raise
        except RuntimeError as error:
            raise KvPeerError(str(error)) from None

    def notify(self, payload: bytes) -> None:
        """Send bytes: delivered once, in order, over reconnects to the same incarnation.

        Raises:
            KvBusyError: too much is waiting to be acknowledged.
        """
        code, message = self._agent.native.notify(self.id, payload)
        if code:
            raise status_error(code, message)

    def disconnect(self) -> None:
        """End the session for good; its transfers fail with `peer_lost`."""
        self._agent.native.disconnect(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and other.id == self.id and other._agent is self._agent

    def __hash__(self) -> int:
        return hash((id(self._agent), self.id))

    def __repr__(self) -> str:
        info = self.info()
        return f"Peer({info.name!r}, {info.state}, providers={list(info.providers)})"
