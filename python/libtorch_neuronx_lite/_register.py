# SPDX-License-Identifier: Apache-2.0
"""Registers the device with PyTorch: the only module of this package with process-wide effects.

The order matters. torch must be imported before `_C`, whose libraries it provides; `_C` registers guard, allocator,
hooks and operators as it loads; the rename must come before the module and the methods, which take their names from it.
"""

from __future__ import annotations

import torch
from torch.utils import backend_registration

from . import _compat

_done = False


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

    backend_registration.rename_privateuse1_backend(_compat.DEVICE_NAME)
    torch._register_device_module(_compat.DEVICE_NAME, device)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    _done = True
