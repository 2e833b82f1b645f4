# SPDX-License-Identifier: Apache-2.0
"""PyTorch on AWS Trainium: the `neuron` device, a torch.compile backend to NEFF, and a runtime.

Importing this package registers the device `neuron` with PyTorch and nothing else: it starts no runtime, touches no
device, sets no environment variable and patches no function. `NEURON_RT_*` and `NEURON_LIBTORCH_*` may be set until
the first tensor is made on the device. The compile backend is registered by `compile.native_backend.register()`.
"""

from __future__ import annotations

from . import _register

_register.run()

__all__: list[str] = []
