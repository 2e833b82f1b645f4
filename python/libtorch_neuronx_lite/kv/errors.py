# SPDX-License-Identifier: Apache-2.0
"""The exceptions of KV transfer, one for each thing a serving stack handles differently."""

from __future__ import annotations

from .._errors import NeuronError

NRT_RESOURCE = 4  # of NRT_STATUS: a limit is reached, or the thing is in use
NRT_TIMEOUT = 5
NRT_CLOSED = 14


class KvError(NeuronError):
    """Base of every error of KV transfer."""


class KvLayoutError(KvError, ValueError):
    """A layout that is wrong in itself, or a pair of layouts between which nothing can be moved."""


class KvBusyError(KvError):
    """Not now: a limit is reached, or what should go away is still in use. Try again later."""


class KvTimeoutError(KvError, TimeoutError):
    """A wait ended before what it waited for; nothing was cancelled."""


class KvPeerError(KvError, ConnectionError):
    """A peer that cannot be reached, or that refused the handshake."""


class KvClosedError(KvError):
    """The agent, the transfer or the peer was closed; after a fork, every agent of the parent is, in the child."""


class KvTransferError(KvError):
    """A transfer that ended in another way than done: its bytes are not to be used.

    Attributes:
        cause: `cancelled`, `deadline`, `peer_lost`, `lease_expired`, `refused`, `provider`, `integrity` or `closed`.
        failed_tokens: token ranges [begin, end) that must be computed or fetched again.
    """

    def __init__(self, message: str, cause: str, failed_tokens: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(message)
        self.cause = cause
        self.failed_tokens = failed_tokens

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.cause, self.failed_tokens)  # it may travel between processes


class KvCancelledError(KvTransferError):
    """The transfer was cancelled by its owner."""


class KvDeadlineError(KvTransferError, TimeoutError):
    """The deadline of the transfer passed."""


class KvPeerLostError(KvTransferError, ConnectionError):
    """The peer died, closed the session, or came back as a new incarnation."""


class KvLeaseExpiredError(KvTransferError):
    """The producer took its blocks back before the read was over."""


_BY_CAUSE: dict[str, type[KvTransferError]] = {
    "cancelled": KvCancelledError,
    "deadline": KvDeadlineError,
    "peer_lost": KvPeerLostError,
    "lease_expired": KvLeaseExpiredError,
}
_BY_CODE: dict[int, type[KvError]] = {
    NRT_RESOURCE: KvBusyError,
    NRT_TIMEOUT: KvTimeoutError,
    NRT_CLOSED: KvClosedError,
}


def transfer_error(message: str, cause: str, failed_tokens: tuple[tuple[int, int], ...] = ()) -> KvTransferError:
    """Return the exception of a cause."""
    return _BY_CAUSE.get(cause, KvTransferError)(message, cause, failed_tokens)


def status_error(code: int, message: str) -> KvError:
    """Return the exception of a failed native status; `code` is an NRT_STATUS number."""
    return _BY_CODE.get(code, KvError)(message)
