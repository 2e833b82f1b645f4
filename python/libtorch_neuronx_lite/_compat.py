# SPDX-License-Identifier: Apache-2.0
"""What must be true of the torch in this process before the extension may be loaded."""

from __future__ import annotations

import sys

import torch

from ._errors import NeuronError

BUILT_FOR_TORCH_MINOR = (2, 13)
"""The torch minor that this release is built for; pyproject.toml requires it, and a test compares both."""

DEVICE_NAME = "neuron"
_UNNAMED = "privateuseone"


def torch_minor(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version such as `2.13.0+cpu`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_torch_version(version: str = torch.__version__) -> None:
    """Refuse a torch of another minor: guard, hooks and allocator are C++ interfaces that change between minors.

    Raises:
        NeuronError: an ImportError that names both versions and the command that mends it.
    """
    if torch_minor(version) == BUILT_FOR_TORCH_MINOR:
        return
    wanted = ".".join(map(str, BUILT_FOR_TORCH_MINOR))
    raise IncompatibleTorchError(
        f"This libtorch-neuronx-lite is built for torch {wanted}.x, but torch {version} is installed. Install the "
        f"matching one with `pip install 'torch=={wanted}.*'`, or reinstall libtorch-neuronx-lite for torch {version}."
    )


def check_device_is_free() -> None:
    """Refuse to load beside another package that owns PyTorch's slot for a private device.

    Raises:
        DeviceConflictError: naming the owner found, and the variable that keeps an autoloaded owner out.
    """
    name = torch._C._get_privateuse1_backend_name()
    taken = name != _UNNAMED
    taken = taken or torch._C._dispatch_has_backend_fallback("PrivateUse1")
    taken = taken or torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "PrivateUse1")
    if not taken:
        return
    raise DeviceConflictError(
        f"{_owner(name)} already owns PyTorch's private device in this process (device name '{name}'), and there is "
        "only one. Going on would end in PyTorch's own error 'Tried to register multiple backend fallbacks for the "
        "same dispatch key PrivateUse1'. Use one of the two packages per process; if the other one was loaded by "
        "`import torch` itself, set TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment before Python starts."
    )


def _owner(device_name: str) -> str:
    """Return a phrase for the package that registered the device, as well as it can be told."""
    module = getattr(torch, device_name, None)
    if module is None:
        return "Another package"
    file = getattr(module, "__file__", None)
    package = getattr(module, "__name__", device_name).partition(".")[0]
    if package == "torch":  # registered under its alias: the top package of the file's own module
        names = [n for n, m in list(sys.modules.items()) if m is module and not n.startswith("torch.")]
        package = names[0].partition(".")[0] if names else device_name
    return f"The package '{package}' ({file})" if file else f"The package '{package}'"


class IncompatibleTorchError(NeuronError, ImportError):
    """The installed torch is of another minor than the extension was built for."""


class DeviceConflictError(NeuronError, ImportError):
    """Another package owns the private device of this process."""
