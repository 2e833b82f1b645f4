# SPDX-License-Identifier: Apache-2.0
"""Tests of eager operators run them on purpose: the fallback is allowed, and set back afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import libtorch_neuronx_lite  # noqa: F401  registers the device


@pytest.fixture(autouse=True)
def _fallback_allowed() -> Iterator[None]:
    before = torch.neuron.fallback_mode()
    torch.neuron.set_fallback_mode("allow")
    yield
    torch.neuron.set_fallback_mode(before)


@pytest.fixture
def staged() -> Iterator[None]:
    """Copies go through the runtime, as on a chip whose memory the host cannot address."""
    from libtorch_neuronx_lite import _C

    _C.force_staging(True)
    yield
    _C.force_staging(False)
