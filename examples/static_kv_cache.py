# SPDX-License-Identifier: Apache-2.0
"""A cache that a compiled graph updates in place: same storage before and after, no copy. No model needed."""

from __future__ import annotations

import torch

import libtorch_neuronx_lite  # noqa: F401  registers the device
from libtorch_neuronx_lite.compile.native_backend import register

LENGTH, HEADS, WIDTH = 8, 2, 4


def append(keys: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Writes `new` [HEADS, 1, WIDTH] at `position`, int64 [1]; returns each head's mean over the whole cache."""
    keys.index_copy_(1, position, new)
    return keys.mean(dim=(1, 2))


def main() -> None:
    """Appends a few positions and shows that the cache stayed where it was."""
    keys = torch.zeros(HEADS, LENGTH, WIDTH).to("neuron:0")
    step = torch.compile(append, backend=register(), fullgraph=True, dynamic=False)
    address = keys.data_ptr()
    with torch.no_grad():
        for index in range(3):
            new = torch.full((HEADS, 1, WIDTH), float(index + 1)).to("neuron:0")
            means = step(keys, new, torch.tensor([index]).to("neuron:0"))
            print(f"position {index}: means {means.cpu().tolist()}")
    assert keys.data_ptr() == address
    print("filled:", keys.cpu()[0, :, 0].tolist(), "at the same address:", keys.data_ptr() == address)


if __name__ == "__main__":
    main()
