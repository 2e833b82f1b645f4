# SPDX-License-Identifier: Apache-2.0
"""Registers the device with PyTorch: the only module of this package with process-wide effects.

The order matters. torch must be imported before `_C`, whose libraries it provides; `_C` registers guard, allocator,
hooks and operators as it loads; the rename must come before the module and the methods, which take their names from it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration

from . import _compat

_done = False


def _refuse_process_groups() -> None:
    """Make `init_process_group("neuron")` an error that says what to write instead."""
    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    backend.register_backend(_compat.DEVICE_NAME, _no_process_group, devices=[_compat.DEVICE_NAME])
    # Not the backend that a group without a named one takes for the device.
    backend.default_device_backend_map.pop(_compat.DEVICE_NAME, None)


def _no_process_group(*_: Any) -> None:
    raise RuntimeError(
        'init_process_group("neuron") asks for the process group of the package torch-neuronx, which libtorch-neuronx-'
        'lite does not have. Write init_process_group("gloo"): collectives of compiled graphs run inside the NEFF, and'
        " those called eagerly on neuron tensors run on the host through gloo."
    )


def run() -> None:
    """Register the device `neuron`. Idempotent.

    Raises:
        IncompatibleTorchError: torch is of another minor than this package was built for.
        DeviceConflictError: another package owns the private device of this process.
    """
    global _done
    if _done:
        return
    _compat.check_torch_version()
    _compat.check_device_is_free()
    from . import device  # loads _C
    from .device import tensor_methods

    backend_registration.rename_privateuse1_backend(_compat.DEVICE_NAME)
    torch._register_device_module(_compat.DEVICE_NAME, device)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    tensor_methods.extend()
    _refuse_process_groups()
    _done = True
