# SPDX-License-Identifier: Apache-2.0
"""What NIXL's agent takes and gives: its options, prepared lists, transfer requests, telemetry."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import KvBusyError
from ..transfer import Transfer
from .descriptors import PreparedList
from .errors import nixlInvalidParamError, nixlNotAllowedError

DEFAULT_COMM_PORT = 8888


class nixl_agent_config:
    """How an agent is made. Thread and port options have no counterpart here and are accepted.

    Attributes:
        backends: NIXL's plugin names; the way to a peer is chosen automatically whatever they are.
        capture_telemetry: whether `get_xfer_telemetry` answers.
        num_threads: copy threads; 0 is one.
    """

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: Sequence[str] = ("UCX",),
        sync_mode: object = None,
    ) -> None:
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = list(backends)
        self.sync_mode = sync_mode


@dataclass(frozen=True)
class nixlXferTelemetry:
    """Telemetry of one transfer; times in microseconds, `startTime` since the epoch."""

    startTime: int
    postDuration: int
    xferDuration: int
    totalBytes: int
    descCount: int


class nixl_prepped_dlist_handle:
    """A prepared descriptor list."""

    def __init__(self, prepared: PreparedList) -> None:
        self._prepared: PreparedList | None = prepared

    def release(self) -> None:
        """Give it up; transfers made from it are not touched."""
        self._prepared = None

    @property
    def prepared(self) -> PreparedList:
        """The list; raises nixlInvalidParamError once released."""
        if self._prepared is None:
            raise nixlInvalidParamError("the descriptor list was released.")
        return self._prepared


class nixl_xfer_handle:
    """A transfer request. Dropping it cancels what is in flight."""

    def __init__(self, transfer: Transfer, notification: bytes, descriptors: int, owners: object) -> None:
        self._transfer = transfer
        self._notification = notification
        self._descriptors = descriptors
        self._owners = owners
        self._posted_at = 0.0
        self._released = False

    def release(self) -> None:
        """Cancel what is in flight, wait until no byte can land, give it up.

        Raises:
            nixlNotAllowedError: bytes could still land after several seconds; release it again later.
        """
        if self._released:
            return
        try:
            self._transfer.__exit__()
        except KvBusyError as error:
            raise nixlNotAllowedError(str(error)) from None
        self._released = True

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()
