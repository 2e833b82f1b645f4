# SPDX-License-Identifier: Apache-2.0
"""NIXL's verbs over this runtime, so that connector code written for NIXL runs unchanged.

    from libtorch_neuronx_lite.kv import nixl_compat
    nixl_compat.install()                      # on request only
    from nixl._api import nixl_agent           # is now ours

Offered are the 17 agent methods that vLLM's connector calls, `nixl_agent_config` and the telemetry type.
"""

from __future__ import annotations

from .agent import NIXL_INIT_AGENT, nixl_agent
from .handles import (
    DEFAULT_COMM_PORT,
    nixl_agent_config,
    nixl_prepped_dlist_handle,
    nixl_xfer_handle,
    nixlXferTelemetry,
)
from .installation import install, uninstall

__all__ = [
    "DEFAULT_COMM_PORT",
    "NIXL_INIT_AGENT",
    "install",
    "nixlXferTelemetry",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_prepped_dlist_handle",
    "nixl_xfer_handle",
    "uninstall",
]
