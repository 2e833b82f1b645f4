# SPDX-License-Identifier: Apache-2.0
"""The meeting place of the ranks whose compiled graphs hold collectives, agreed through their gloo group."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

from . import _C

VARIABLE = "NEURON_RT_ROOT_COMM_ID"


def rendezvous(address: str | None = None) -> str:
    """Set NEURON_RT_ROOT_COMM_ID to the same address on every rank of the default process group, and return it.

    Every rank calls it, after `init_process_group("gloo")` and before its first neuron tensor, where the runtime reads
    the variable. A variable that is set on rank 0 stays as it is and is given to the others.

    Args:
        address: host:port at which rank 0 is to listen; by default a free port of the address that torchrun gave
            (MASTER_ADDR). Only rank 0's counts.

    Raises:
        RuntimeError: there is no default group, or the runtime of a rank has started with another address.
    """
    if not dist.is_initialized():
        raise RuntimeError('rendezvous() needs the process group: call torch.distributed.init_process_group("gloo")')
    chosen: list[str | None] = [None]
    if dist.get_rank() == 0:
        chosen[0] = os.environ.get(VARIABLE) or address or _free_address()
    dist.broadcast_object_list(chosen, src=0)
    root = chosen[0]
    assert root is not None
    if _C.is_initialized() and os.environ.get(VARIABLE) != root:
        raise RuntimeError(
            f"rendezvous() came too late: the Neuron runtime of rank {dist.get_rank()} has read {VARIABLE} when it"
            f" started. Call it before the first neuron tensor, or set {VARIABLE}={root} before the process starts."
        )
    os.environ[VARIABLE] = root
    return root


def _free_address() -> str:
    """Return an address of this host with a port that was free a moment ago."""
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        listener = socket.create_server((host, 0))
    except OSError:  # torchrun's address is another host's, or a name that is not bound here
        host = socket.gethostbyname(socket.gethostname())
        listener = socket.create_server((host, 0))
    with listener:
        return f"{host}:{listener.getsockname()[1]}"
