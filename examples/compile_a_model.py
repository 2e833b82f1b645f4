# SPDX-License-Identifier: Apache-2.0
"""The five lines of the README around a small model: compile it, run it, compare it with the CPU."""

from __future__ import annotations

import torch
from torch import nn

import libtorch_neuronx_lite  # noqa: F401  registers the device
from libtorch_neuronx_lite.compile.native_backend import register


def main() -> None:
    """Prints the largest difference between the compiled model on neuron:0 and the same model on the CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).eval()
    ids = torch.randint(0, 100, (4, 16))
    with torch.no_grad():
        expected = model(ids)

        compiled = torch.compile(model.to("neuron:0"), backend=register())
        out = compiled(ids.to("neuron:0"))

        torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
        print(f"{tuple(out.shape)} on {out.device}, largest difference {(out.cpu() - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
