# SPDX-License-Identifier: Apache-2.0
"""NIXL's exceptions under their own names, and what of ours each stands for."""

from __future__ import annotations

from ..errors import (
    KvBusyError,
    KvCancelledError,
    KvError,
    KvLayoutError,
    KvPeerError,
    KvPeerLostError,
    KvTransferError,
)


class nixlBackendError(Exception):
    """The transfer runtime failed; the message has its own text."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlInvalidParamError(Exception):
    """An argument that cannot be."""


class nixlMismatchError(Exception):
    """Metadata of another name, version or content than expected."""


class nixlNoTelemetryError(Exception):
    """The agent was configured without `capture_telemetry`."""


class nixlNotAllowedError(Exception):
    """Not in this state."""


class nixlNotFoundError(Exception):
    """No such agent, backend or registered memory."""


class nixlNotPostedError(Exception):
    """The transfer has not been started."""


class nixlNotSupportedError(Exception):
    """NIXL offers it, this runtime does not."""


class nixlRemoteDisconnectError(Exception):
    """The remote agent is gone."""


class nixlRepostActiveError(Exception):
    """The transfer is still running."""


class nixlUnknownError(Exception):
    """Anything else."""


def as_nixl(error: KvError) -> Exception:
    """Return the NIXL exception of one of ours, with its message."""
    kinds: list[tuple[type[KvError], type[Exception]]] = [
        (KvPeerLostError, nixlRemoteDisconnectError),
        (KvPeerError, nixlRemoteDisconnectError),
        (KvCancelledError, nixlCancelledError),
        (KvTransferError, nixlBackendError),
        (KvBusyError, nixlNotAllowedError),
        (KvLayoutError, nixlInvalidParamError),
    ]
    for ours, theirs in kinds:
        if isinstance(error, ours):
            return theirs(str(error))
    return nixlBackendError(str(error))
