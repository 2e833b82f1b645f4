# SPDX-License-Identifier: Apache-2.0
"""Leases: blocks that a producer keeps for named readers, and the ticket that tells a reader about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .config import milliseconds
from .errors import KvError, status_error

if TYPE_CHECKING:
    from .agent import Agent


def check_grant(readers: Sequence[str], tokens: tuple[int, int] | None) -> None:
    """Refuse one name in place of a list of them, and what is no range of positions."""
    if isinstance(readers, str):
        raise TypeError(f"readers is a list of agents' names, not one name: write readers=[{readers!r}]")
    if tokens is not None and not 0 <= tokens[0] <= tokens[1]:
        raise KvError(f"tokens={tokens} is not a range of positions: it needs 0 <= begin <= end")


@dataclass(frozen=True)
class LeaseTicket:
    """What a reader must know of a lease; it travels inside the serving stack's own request, as JSON.

    It carries a capability key: whoever has it can read the blocks. Treat it as a secret. The named readers are those
    that the producer waits for; another's read ends nothing and is warned of.

    Attributes:
        request: the producer's name of the request.
        producer: name of the agent that granted it.
        endpoint: where that agent listens.
        blocks: ids of the leased blocks, in token order.
        tokens: token positions [begin, end) of the request that they hold, or None for all their slots.
        first_token: position of the first slot of the first block.
        id: of the lease.
        key: the capability, 32 hexadecimal digits.
        word: its place in the producer's lease table.
        generation: what that place holds while the lease is valid.
    """

    request: str
    producer: str
    endpoint: str
    blocks: tuple[int, ...]
    tokens: tuple[int, int] | None
    first_token: int
    id: int
    key: str
    word: int
    generation: int

    def __repr__(self) -> str:
        return f"LeaseTicket(request={self.request!r}, producer={self.producer!r}, id={self.id}, key=...)"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self) | {"blocks": list(self.blocks), "tokens": list(self.tokens) if self.tokens else None}

    def to_json(self) -> str:
        """Return the ticket as JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Any) -> LeaseTicket:
        """Read a ticket that came over the network: every field is checked, unknown ones are refused.

        Raises:
            ValueError: naming the field.
        """
        if not isinstance(data, dict) or set(data) != set(cls.__dataclass_fields__):
            raise ValueError(f"a lease ticket has the fields {', '.join(cls.__dataclass_fields__)}.")
        for name in ("request", "producer", "endpoint"):
            if not isinstance(data[name], str):
                raise ValueError(f"lease ticket: {name} must be text.")
        for name in ("first_token", "id", "word", "generation"):
            _check_number(name, data[name], 2**64)
        if not isinstance(data["blocks"], list):
            raise ValueError("lease ticket: blocks must be a list of block ids.")
        for block in data["blocks"]:
            _check_number("blocks", block, 2**32)
        tokens = data["tokens"]
        if tokens is not None:
            if not isinstance(tokens, list) or len(tokens) != 2:
                raise ValueError("lease ticket: tokens must be [begin, end] or null.")
            for token in tokens:
                _check_number("tokens", token, 2**64)
            if tokens[0] > tokens[1]:
                raise ValueError(f"lease ticket: tokens begin at {tokens[0]}, after their end {tokens[1]}.")
        key = data["key"]
        if not isinstance(key, str) or len(key) != 32 or set(key) - set("0123456789abcdef"):
            raise ValueError("lease ticket: key must be 32 hexadecimal digits.")
        fields = data | {"blocks": tuple(data["blocks"]), "tokens": None if tokens is None else (tokens[0], tokens[1])}
        return cls(**fields)

    @classmethod
    def from_json(cls, text: str | bytes) -> LeaseTicket:
        """Read JSON text; raises ValueError, as `from_dict`."""
        return cls.from_dict(json.loads(text))

    def native(self) -> dict[str, Any]:
        """Return what the native runtime wants of it."""
        return {"id": self.id, "key": bytes.fromhex(self.key), "word": self.word, "generation": self.generation}


def _check_number(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise ValueError(f"lease ticket: {name} holds {value!r}, it must be a whole number below {limit}.")


@dataclass(frozen=True)
class LeaseEvent:
    """The blocks of a lease are the producer's again; there is exactly one event per lease.

    Attributes:
        id: of the lease.
        request: as granted.
        end: `read` (every named reader finished), `expired` or `released`.
        reason: of `Lease.release`.
        blocks: ids that may be used again.
    """

    id: int
    request: str
    end: str
    reason: str
    blocks: tuple[int, ...]


class Lease:
    """The producer's side of a lease. As a context manager it is released on the way out.

    Attributes:
        ticket: what the reader needs.
        readers: names of the agents that may read.
    """

    def __init__(self, agent: Agent, ticket: LeaseTicket, readers: Sequence[str]) -> None:
        self._agent = agent
        self.ticket = ticket
        self.readers = tuple(readers)

    def renew(self, ttl: float) -> None:
        """Let the lease end `ttl` seconds from now.

        Raises:
            KvError: it has ended already.
        """
        code, message = self._agent.native.renew(self.ticket.id, milliseconds(ttl, "ttl"))
        if code:
            raise status_error(code, message)

    def release(self, reason: str = "") -> None:
        """Take the blocks back now; reads that are not over fail with `lease_expired`. Repeating it is fine.

        The blocks may be used again when the lease's event says so (`Agent.lease_events`).
        """
        code, message = self._agent.native.release_lease(self.ticket.id, reason)
        if code:
            raise status_error(code, message)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release("left its context")

    def __repr__(self) -> str:
        return f"Lease(request={self.ticket.request!r}, id={self.ticket.id}, readers={self.readers})"
