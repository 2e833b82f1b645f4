# SPDX-License-Identifier: Apache-2.0
"""The configuration of an agent: addresses, security, limits and times, with the defaults of the native runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROVIDERS = ("loopback", "shm", "cma", "tcp")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """How an agent listens, what it allows, how long it waits. Times in seconds, sizes in bytes.

    Attributes:
        bind: `unix:/path` or `tcp:host:port` (port 0: any free one); empty: a Unix socket in a private folder.
        key_file: file of mode 0600 with the pre-shared key; needed for any bind that other hosts can reach.
        insecure: allow such a bind without a key.
        providers: the allowed ones in order of preference; empty: loopback, shm, cma, tcp.
        data_checksum: CRC32C over the data that goes by tcp.
        copy_threads: threads that move bytes.
        default_deadline: of a transfer that is posted without one.
        max_peers: sessions and peers being connected.
        max_regions: registered regions.
        max_leases: leases that have not ended.
        max_transfers: transfers that are not released.
        max_bytes_in_flight: of all posted transfers; more is `KvBusyError`.
        max_notification_bytes: waiting to be acknowledged per peer, and waiting to be polled.
        inline_bytes: a transfer of at most this may complete inside `post`.
        keep_alive: an idle session is pinged this often.
        suspect_after: silence after which a peer is suspect.
        down_after: silence after which its session is given up.
    """

    bind: str = ""
    key_file: str = ""
    insecure: bool = False
    providers: Sequence[str] = ()
    data_checksum: bool = False
    copy_threads: int = 1
    default_deadline: float = 30.0
    max_peers: int = 1024
    max_regions: int = 4096
    max_leases: int = 65536
    max_transfers: int = 65536
    max_bytes_in_flight: int = 64 << 30
    max_notification_bytes: int = 64 << 20
    inline_bytes: int = 64 << 10
    keep_alive: float = 1.0
    suspect_after: float = 2.0
    down_after: float = 10.0

    def native_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the native agent."""
        times = {"default_deadline", "keep_alive", "suspect_after", "down_after"}
        arguments: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in times:
                arguments[f"{name}_ms"] = milliseconds(value, name)
            else:
                arguments[name] = list(value) if name == "providers" else value
        return arguments


def milliseconds(seconds: float, what: str) -> int:
    """Return whole milliseconds, rounded up, so that a short time is never none.

    Raises:
        ValueError: not a positive, finite number.
    """
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"{what} is {seconds}, it must be a positive number of seconds.")
    return math.ceil(seconds * 1000)
