# SPDX-License-Identifier: Apache-2.0
"""The jobs that a worker may run: the only names that travel to it, each with the function it stands for.

A job is ``function(blobs, params) -> (blobs, info)``: bytes by name and JSON in, bytes by name and JSON out. It may
import torch_mlir and numpy, never torch.
"""

from __future__ import annotations

from types import MappingProxyType

JOBS = MappingProxyType(
    {
        "hostcc.compiler:compile": "libtorch_neuronx_lite.hostcc.compiler:compile",
        "stablehlo.pipeline:lower": "libtorch_neuronx_lite.stablehlo.pipeline:lower",
    }
)
