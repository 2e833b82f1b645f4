# SPDX-License-Identifier: Apache-2.0
"""Puts the facade where NIXL's modules are imported from: `nixl`, `nixl._api`, `nixl._bindings`."""

from __future__ import annotations

import sys
import types

from . import agent, errors, handles

_MODULES = ("nixl", "nixl._api", "nixl._bindings")
_API = (
    "DEFAULT_COMM_PORT",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_prepped_dlist_handle",
    "nixl_xfer_handle",
)
_MARK = "__libtorch_neuronx_lite__"


def install() -> None:
    """Make `import nixl` give this facade in this process. Idempotent; never done without being asked.

    Raises:
        RuntimeError: the real NIXL was imported before; two owners of these names cannot be told apart.
    """
    for name in _MODULES:
        present = sys.modules.get(name)
        if present is not None and not hasattr(present, _MARK):
            raise RuntimeError(f"module {name} is already imported from {getattr(present, '__file__', 'elsewhere')}.")
    package, api, bindings = (types.ModuleType(name, __doc__) for name in _MODULES)
    for module in (package, api, bindings):
        setattr(module, _MARK, True)
    for name in _API:
        value = getattr(agent if name == "nixl_agent" else handles, name)
        setattr(package, name, value)
        setattr(api, name, value)
    for name, value in vars(errors).items():
        if name.startswith("nixl"):
            setattr(bindings, name, value)
    bindings.nixlXferTelemetry = handles.nixlXferTelemetry  # type: ignore[attr-defined]
    bindings.NIXL_INIT_AGENT = agent.NIXL_INIT_AGENT  # type: ignore[attr-defined]
    bindings.DEFAULT_COMM_PORT = handles.DEFAULT_COMM_PORT  # type: ignore[attr-defined]
    package.__path__ = []
    package._api, package._bindings = api, bindings  # type: ignore[attr-defined]
    sys.modules.update(zip(_MODULES, (package, api, bindings), strict=True))


def uninstall() -> None:
    """Undo `install`; what was imported from it stays usable."""
    for name in _MODULES:
        if hasattr(sys.modules.get(name), _MARK):
            del sys.modules[name]
