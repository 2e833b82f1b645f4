# SPDX-License-Identifier: Apache-2.0
"""Each test starts on neuron:0 and its default stream. That eager operators run on the CPU is allowed in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import libtorch_neuronx_lite  # noqa: F401


@pytest.fixture(autouse=True)
def _first_device() -> Iterator[None]:
    """Each test starts on neuron:0 and its default stream."""
    yield
    torch.neuron.set_device(0)
    for index in range(torch.neuron.device_count()):
        torch.neuron.set_stream(torch.neuron.default_stream(index))
    torch.neuron.set_device(0)
