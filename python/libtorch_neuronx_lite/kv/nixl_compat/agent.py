# SPDX-License-Identifier: Apache-2.0
"""nixl_agent over this runtime: the methods that serving connectors call, under NIXL's names."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

from ... import envs
from ..._log import get_logger
from ..agent import Agent
from ..config import AgentConfig
from ..errors import KvError
from ..layout import Region
from ..memory import RegisteredMemory
from ..peer import Peer
from .descriptors import DescriptorList, PreparedList, Regions, RegistrationList, parse, runs_of
from .errors import (
    as_nixl,
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlNotSupportedError,
    nixlRepostActiveError,
)
from .handles import nixl_agent_config, nixl_prepped_dlist_handle, nixl_xfer_handle, nixlXferTelemetry

NIXL_INIT_AGENT = "NIXL_INIT_AGENT"
_MEMORY_PLUGINS = frozenset({"UCX", "UCX_MO", "LIBFABRIC", "MOONCAKE", "UCCL", "GPUNETIO"})
_STORAGE_PLUGINS = frozenset({"POSIX", "GDS", "GDS_MT", "OBJ", "AZURE_BLOB", "HF3FS", "GUSLI", "INFINIA"})
_MAGIC = b"NXLKV1"
_CONNECT_SECONDS = 10.0
_QUIESCE_SECONDS = 5.0
_NO_DEADLINE_SECONDS = 86400.0  # NIXL's transfers have none
_log = get_logger(__name__)
_said = threading.Event()


class nixl_agent:
    """NIXL's agent over `Agent`. Errors are NIXL's exception types.

    `NEURON_LIBTORCH_KV_BIND` and `NEURON_LIBTORCH_KV_KEY_FILE` say where it listens when peers are on other hosts.

    Args:
        agent_name: unique among the agents that meet.
        nixl_conf: options.
        instantiate_all: accepted; there is nothing to choose.
    """

    def __init__(
        self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False
    ) -> None:
        self.name = agent_name
        self._options = nixl_conf or nixl_agent_config()
        self._agent = Agent(
            agent_name,
            AgentConfig(
                bind=envs.NEURON_LIBTORCH_KV_BIND or "",
                key_file=envs.NEURON_LIBTORCH_KV_KEY_FILE or "",
                copy_threads=max(1, self._options.num_threads),
                default_deadline=_NO_DEADLINE_SECONDS,
            ),
        )
        self._memory: list[tuple[DescriptorList, RegisteredMemory]] = []
        self._peers: dict[str, Peer] = {}
        self.backends: dict[str, int] = {}
        for backend in self._options.backends:
            self.create_backend(backend)

    @property
    def agent(self) -> Agent:
        """The agent of this runtime below."""
        return self._agent

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:
        """Accept the name of a plugin of NIXL's; how a peer is reached is chosen automatically."""
        if backend in _STORAGE_PLUGINS:
            raise nixlNotSupportedError(f"backend {backend} moves data to storage; this runtime moves memory.")
        if backend not in _MEMORY_PLUGINS:
            raise nixlNotFoundError(f"backend {backend!r} is none of {', '.join(sorted(_MEMORY_PLUGINS))}.")
        self.backends[backend] = len(self.backends) + 1
        if not _said.is_set():
            _said.set()
            _log.warning(
                "NIXL backend %s: accepted as a name; each peer is reached by the first of loopback, shm, cma and tcp "
                "that can (said once).",
                backend,
            )

    # Memory.

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> RegistrationList:
        """Return a registration list of tuples (address, bytes, device, text), an Nx3 array, or tensors."""
        parsed = parse(descs, mem_type, columns=(3,))
        return RegistrationList(parsed.kind, parsed.rows, parsed.owners)

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> RegistrationList:
        """Make memory reachable; the result is for `deregister_memory`."""
        self._check_backends(backends)
        descs = self.get_reg_descs(reg_list, mem_type)
        regions = [
            Region(
                int(address), int(size), f"{descs.kind.lower()}-{i}", int(device) if descs.kind == "VRAM" else -1, owner
            )
            for i, ((address, size, device), owner) in enumerate(
                zip(descs.rows[:, :3].tolist(), descs.owners or [None] * len(descs.rows), strict=True)
            )
        ]
        try:
            self._memory.append((descs, self._agent.register(regions)))
        except KvError as error:
            raise as_nixl(error) from None
        return descs

    def deregister_memory(self, dereg_list: RegistrationList, backends: Sequence[str] = ()) -> None:
        """Take memory back; raises nixlNotAllowedError while a transfer uses it."""
        self._check_backends(backends)
        for entry in self._memory:
            same = entry[0] is dereg_list or (
                entry[0].rows.shape == dereg_list.rows.shape and (entry[0].rows == dereg_list.rows).all()
            )
            if same:
                try:
                    entry[1].deregister()
                except KvError as error:
                    raise as_nixl(error) from None
                self._memory.remove(entry)
                return
        raise nixlNotFoundError("this memory is not registered.")

    # Agents.

    def get_agent_metadata(self) -> bytes:
        """Return what another agent needs to reach this one and its memory: text with a checksum."""
        indices = [index for _, memory in self._memory for index in memory.indices]
        body = json.dumps(
            {
                "name": self.name,
                "endpoint": self._agent.endpoint,
                "incarnation": self._agent.incarnation,
                "last_region": max(indices, default=-1),
            }
        ).encode()
        return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Connect to the agent that made `metadata`; returns its name, as NIXL does in bytes.

        Raises:
            nixlMismatchError: the metadata is damaged, or another agent answers at its address.
            nixlRemoteDisconnectError: nobody answers.
        """
        fields = _parse_metadata(metadata)
        name: str = fields["name"]
        peer = self._agent.peer(name)
        if peer is None or not peer.up or peer.info().incarnation != fields["incarnation"]:
            try:
                peer = self._agent.connect(fields["endpoint"], _CONNECT_SECONDS)
            except KvError as error:
                raise as_nixl(error) from None
            info = peer.info()
            if (info.name, info.incarnation) != (name, fields["incarnation"]):
                raise nixlMismatchError(f"at {fields['endpoint']} answers {info.name!r}, not the {name!r} described.")
        limit = time.monotonic() + _CONNECT_SECONDS
        while fields["last_region"] not in {-1, *(region.index for region in peer.regions())}:
            if time.monotonic() > limit:
                raise nixlMismatchError(f"agent {name!r} no longer has the memory that its metadata describes.")
            time.sleep(0.001)  # its table is on the way
        self._peers[name] = peer
        return name.encode()

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Disconnect from an agent."""
        self._peer(agent).disconnect()
        del self._peers[_text(agent)]

    def check_remote_metadata(self, agent: str | bytes, descs: DescriptorList | None = None) -> bool:
        """Return whether an agent was added, and has `descs` registered."""
        name = _text(agent)
        if name not in self._peers:
            return False
        if descs is None:
            return True
        try:
            PreparedList.make(name, descs, self._regions(name))
        except nixlNotFoundError:
            return False
        return True

    # Transfers.

    def prep_xfer_dlist(
        self, agent_name: str | bytes, xfer_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> nixl_prepped_dlist_handle:
        """Check descriptors of one side once, for transfers by index.

        Args:
            agent_name: `NIXL_INIT_AGENT` or empty for our side, else the other agent's name.
            xfer_list: tensors, tuples (address, bytes, device), an Nx3 array, or an Nx5 array of (address, bytes,
                device, stride, count), each row of which is `count` descriptors.
            mem_type: `DRAM` or `VRAM`, for addresses.
            backends: names, checked only.
        """
        self._check_backends(backends)
        name = _text(agent_name)
        agent = "" if name in ("", NIXL_INIT_AGENT) else name
        return nixl_prepped_dlist_handle(
            PreparedList.make(agent, parse(xfer_list, mem_type, columns=(3, 5)), self._regions(agent))
        )

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: bytes = b"",
        backends: Sequence[str] = (),
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """Make a READ or WRITE of selected descriptors, pair by pair."""
        self._check_backends(backends)
        if operation not in ("READ", "WRITE"):
            raise nixlInvalidParamError(f"operation {operation!r} must be READ or WRITE.")
        local, remote = local_xfer_side.prepared, remote_xfer_side.prepared
        if local.agent or not remote.agent:
            raise nixlInvalidParamError("the first list must be of this agent, the second of a remote one.")
        peer = self._peer(remote.agent)
        ours, theirs = local.at(local_indices), remote.at(remote_indices)
        try:
            if operation == "READ":
                runs, count = runs_of(theirs, ours)
                transfer = self._agent.prepare_read(peer, runs, request_id=operation)
            else:
                runs, count = runs_of(ours, theirs)
                transfer = self._agent.prepare_write(peer, runs, request_id=operation)
        except KvError as error:
            raise as_nixl(error) from None
        return nixl_xfer_handle(transfer, _bytes(notif_msg), count, (local, remote))

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes = b"") -> str:
        """Start it; returns `DONE` or `PROC`."""
        handle._notification = _bytes(notif_msg) or handle._notification
        status = handle._transfer.status()
        if handle._posted_at and not (status.terminal and status.quiesced):
            raise nixlRepostActiveError(f"transfer {handle._transfer.id} is {status.state}.")
        handle._posted_at = time.time()
        try:
            handle._transfer.post(notification=handle._notification)
        except KvError as error:
            raise as_nixl(error) from None
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Return `DONE` or `PROC`; raises the exception of the cause when it failed."""
        if not handle._posted_at:
            raise nixlNotPostedError(f"transfer {handle._transfer.id} was not started.")
        try:
            return "DONE" if handle._transfer.done() else "PROC"
        except KvError as error:
            raise as_nixl(error) from None

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """Return the times of a transfer that is done."""
        if not self._options.capture_telemetry:
            raise nixlNoTelemetryError("make the agent with nixl_agent_config(capture_telemetry=True).")
        if not handle._posted_at:
            raise nixlNotPostedError(f"transfer {handle._transfer.id} was not started.")
        times = handle._transfer.times()
        return nixlXferTelemetry(
            startTime=int(handle._posted_at * 1e6),
            postDuration=round(times.post),
            xferDuration=round(times.total),
            totalBytes=times.bytes,
            descCount=handle._descriptors,
        )

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """As `handle.release()`."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """As `handle.release()`."""
        handle.release()

    # Notifications.

    def send_notif(self, remote_agent_name: str | bytes, notif_msg: bytes, backend: str | None = None) -> None:
        """Send a message to an agent."""
        self._check_backends([backend] if backend else [])
        try:
            self._peer(remote_agent_name).notify(_bytes(notif_msg))
        except KvError as error:
            raise as_nixl(error) from None

    def get_new_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Return the messages that have arrived since the last call, by agent."""
        self._check_backends(backends)
        found: dict[str, list[bytes]] = {}
        while arrived := self._agent.notifications():
            for name, payload in arrived:
                found.setdefault(name, []).append(payload)
        return found

    def _peer(self, agent: str | bytes) -> Peer:
        name = _text(agent)
        if name not in self._peers:
            raise nixlNotFoundError(f"agent {name!r} was not added.")
        return self._peers[name]

    def _regions(self, agent: str) -> Regions:
        if agent:
            return Regions.of([(region.address, region.bytes, region.index) for region in self._peer(agent).regions()])
        return Regions.of(
            [
                (region.address, region.bytes, index)
                for _, memory in self._memory
                for region, index in zip(memory.regions, memory.indices, strict=True)
            ]
        )

    def _check_backends(self, backends: Sequence[str]) -> None:
        for backend in backends:
            if backend not in self.backends:
                raise nixlNotFoundError(f"backend {backend!r} was not created.")

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._agent.close()


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def _bytes(message: bytes | str) -> bytes:
    return message.encode() if isinstance(message, str) else bytes(message)


def _parse_metadata(metadata: bytes) -> dict[str, Any]:
    head = len(_MAGIC) + 4
    body = metadata[head:]
    if metadata[: len(_MAGIC)] != _MAGIC or metadata[len(_MAGIC) : head] != zlib.crc32(body).to_bytes(4, "little"):
        raise nixlMismatchError("this is not, or no longer, the metadata of an agent of this runtime.")
    try:
        fields: dict[str, Any] = json.loads(body)
        if not (
            all(isinstance(fields[name], str) for name in ("name", "endpoint", "incarnation"))
            and isinstance(fields["last_region"], int)
        ):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise nixlMismatchError("the metadata of an agent lacks a field.") from None
    return fields
