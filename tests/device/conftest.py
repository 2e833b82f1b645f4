# SPDX-License-Identifier: Apache-2.0
"""Tests of the device use eager operators freely; the fallback's warnings have tests of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import libtorch_neuronx_lite  # noqa: F401


@pytest.fixture(autouse=True)
def _fallback_allowed() -> Iterator[None]:
    before = torch.neuron.fallback_mode()
    torch.neuron.set_fallback_mode("allow")
    yield
    torch.neuron.set_fallback_mode(before)


@pytest.fixture(autouse=True)
def _first_device() -> Iterator[None]:
    """Each test starts on neuron:0 and its default stream."""
    yield
    torch.neuron.set_device(0)
    for index in range(torch.neuron.device_count()):
        torch.neuron.set_stream(torch.neuron.default_stream(index))
    torch.neuron.set_device(0)
