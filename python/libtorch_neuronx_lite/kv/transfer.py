# SPDX-License-Identifier: Apache-2.0
"""One transfer: post, poll or wait or await, cancel, release."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import milliseconds
from .errors import KvBusyError, KvTimeoutError, status_error, transfer_error

if TYPE_CHECKING:
    from .agent import Agent
    from .peer import Peer

_TERMINAL = frozenset({"done", "failed", "cancelled"})
_WAIT_SLICE_MS = 200  # between two looks at Python's signals


@dataclass(frozen=True)
class TransferStatus:
    """A transfer at one moment.

    Attributes:
        state: `prepared`, `posted`, `active`, `cancelling`, or a terminal one: `done`, `failed`, `cancelled`.
        cause: why it ended; `none` while it has not, or when it is done.
        message: the same in words, with ids.
        quiesced: no byte of it can land any more.
        bytes_done: bytes in place.
        failed_tokens: token ranges [begin, end) to be computed or fetched again. Of a planned transfer that broke off:
            those with a byte missing, once it is quiesced; until then, and whenever the bytes cannot be trusted (the
            lease ended or cannot be looked at, a checksum was wrong), the whole range.
    """

    state: str
    cause: str
    message: str
    quiesced: bool
    bytes_done: int
    failed_tokens: tuple[tuple[int, int], ...]

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self.state in _TERMINAL


@dataclass(frozen=True)
class TransferTimes:
    """Where the time of a transfer went, in microseconds.

    Attributes:
        plan: planning and checks.
        post: inside `post`, on the caller's thread.
        queue: until a copy thread took it.
        wire: moving bytes; of a WRITE: the target's work, from the request to the result.
        flush: part of `wire`: making what arrived visible, where the provider needs that.
        validate: reading the lease's generation.
        total: from `post` to the terminal state.
        ack: READ: from done until the peer acknowledged the notification or the finished lease; 0 until then, or when
            there was neither. WRITE: the request and its status on their way.
        bytes: moved.
        runs: pieces they were moved in.
        provider: `shm`, `cma`, `tcp` or `loopback`.
    """

    plan: float
    post: float
    queue: float
    wire: float
    flush: float
    validate: float
    total: float
    ack: float
    bytes: int
    runs: int
    provider: str

    @property
    def gb_per_s(self) -> float | None:
        """1e9 bytes per second of `total`; None when it took no measurable time."""
        return self.bytes / (self.total * 1e3) if self.total > 0 else None


class Transfer:
    """A READ into, or a WRITE from, memory that this process has registered.

    As a context manager it is cancelled when it is not over on the way out, waited for until no byte of it can land,
    and released.

    Attributes:
        peer: the other side.
        request_id: the serving stack's name of the request, for logs.
        id: number of the transfer in this agent.
    """

    def __init__(self, agent: Agent, peer: Peer, request_id: str, transfer: int) -> None:
        self._agent = agent
        self.peer = peer
        self.request_id = request_id
        self.id = transfer
        self._released = False

    def post(self, deadline: float | None = None, notification: bytes = b"") -> None:
        """Start it, or start it again once it is over and quiesced.

        Args:
            deadline: seconds from now; the agent's `default_deadline` when None.
            notification: reaches the peer after the data, and only if the transfer is done.

        Raises:
            KvBusyError: a limit is reached; nothing was started, post again later.
            KvError: it cannot be started.
        """
        deadline_ms = 0 if deadline is None else milliseconds(deadline, "deadline")
        code, message = self._agent.native.post(self.id, deadline_ms, notification)
        if code:
            raise status_error(code, message)

    def status(self) -> TransferStatus:
        """Return the present state; never blocks."""
        return self._status(self._agent.native.check(self.id))

    def done(self) -> bool:
        """Return True when all bytes are in place, False while it runs.

        Raises:
            KvTransferError: it ended in another way; the subclass and `cause` say which.
        """
        return self._agent.native.is_done(self.id) or self._judge(self.status())

    def wait(self, timeout: float | None = None) -> TransferStatus:
        """Block until the transfer is done; its own deadline bounds this.

        Args:
            timeout: seconds after which to give up waiting; the transfer goes on.

        Raises:
            KvTimeoutError: `timeout` is over.
            KvTransferError: it ended in another way than done.
        """
        status = self._wait_until(lambda status: status.terminal, timeout)
        if not self._judge(status):
            raise KvTimeoutError(f"transfer {self.id} of {self.request_id!r} is {status.state} after {timeout} s.")
        return status

    async def finished(self) -> TransferStatus:
        """Wait inside an asyncio loop, on the file descriptor; raises as `wait` does."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        descriptor = self.fileno()
        loop.add_reader(descriptor, ready.set)
        try:
            while not (status := self.status()).terminal:
                ready.clear()
                await ready.wait()
        finally:
            loop.remove_reader(descriptor)
        self._judge(status)
        return status

    def fileno(self) -> int:
        """Return a descriptor that is readable once the transfer is terminal; the agent's, good until `release`."""
        return int(self._agent.native.completion_fd(self.id))

    def cancel(self) -> None:
        """Ask it to stop; returns at once. It ends as `cancelled` unless it was over before."""
        self._agent.native.cancel(self.id)

    def release(self) -> None:
        """Give the transfer up. After this returned, not one byte of it lands. Repeating it is fine.

        Raises:
            KvBusyError: bytes may still land: it is not terminal, or not quiesced yet.
        """
        if self._released:
            return
        code, message = self._agent.native.release(self.id)
        if code:
            raise status_error(code, message)
        self._released = True

    def times(self) -> TransferTimes:
        """Return the stage timings of the last post."""
        return TransferTimes(**self._agent.native.times(self.id))

    def _judge(self, status: TransferStatus) -> bool:
        if status.state == "done":
            return True
        if status.terminal:
            message = f"transfer {self.id} of {self.request_id!r}: {status.message or status.cause}"
            raise transfer_error(message, status.cause, status.failed_tokens)
        return False

    def _status(self, native: dict[str, Any]) -> TransferStatus:
        return TransferStatus(
            state=native["state"],
            cause=native["cause"],
            message=native["message"],
            quiesced=native["quiesced"],
            bytes_done=native["bytes_done"],
            failed_tokens=tuple((begin, end) for begin, end in native["failed_tokens"]),
        )

    def _wait_until(self, condition: Any, timeout: float | None) -> TransferStatus:
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_SLICE_MS if limit is None else int((limit - time.monotonic()) * 1000)
            status = self._status(self._agent.native.wait(self.id, max(0, min(left, _WAIT_SLICE_MS))))
            if condition(status) or (limit is not None and time.monotonic() >= limit):
                return status
            if status.terminal:
                time.sleep(0.001)  # the native wait ends at the terminal state; quiescence may follow it

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._released:
            return
        if self.status().state == "prepared":
            self.release()
            return
        if not self.status().terminal:
            self.cancel()
        # A copy looks at its stop flag within a chunk or 50 ms; what is not quiesced long after that stays with the
        # agent, which quarantines it.
        status = self._wait_until(lambda status: status.terminal and status.quiesced, 10.0)
        if not (status.terminal and status.quiesced):
            raise KvBusyError(f"transfer {self.id} of {self.request_id!r} is still {status.state}; release it later.")
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._released else self.status().state
        return f"Transfer({self.id}, request={self.request_id!r}, peer={self.peer.name!r}, {state})"
