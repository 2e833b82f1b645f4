# SPDX-License-Identifier: Apache-2.0
"""Every call of torch.accelerator works on the device, and agrees with torch.neuron."""

from __future__ import annotations

import pytest
import torch


def test_it_is_the_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("neuron")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 2


def test_the_current_device() -> None:
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == torch.neuron.current_device() == 1
    assert torch.empty(1, device="neuron").device == torch.device("neuron:1")
    with torch.accelerator.device_index(0):
        assert torch.neuron.current_device() == 0
    assert torch.neuron.current_device() == 1
    with torch.accelerator.device_index(None):
        assert torch.neuron.current_device() == 1


def test_streams_and_waiting() -> None:
    assert torch.accelerator.current_stream() == torch.neuron.current_stream()
    own = torch.Stream("neuron:1")
    torch.accelerator.set_stream(own)
    assert torch.accelerator.current_stream() == own
    assert torch.neuron.current_device() == 1
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("neuron:0")


def test_memory() -> None:
    tensor = torch.empty(1000, device="neuron")
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.accelerator.memory_allocated() >= tensor.nbytes
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total
    assert (free, total) == torch.neuron.mem_get_info()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()


def test_capability() -> None:
    assert torch.accelerator.get_device_capability() == torch.neuron.get_device_capability()


@pytest.mark.parametrize("call", [torch.accelerator.set_device_index, torch.accelerator.synchronize,
                                  torch.accelerator.memory_stats, torch.accelerator.current_stream])  # fmt: skip
def test_an_index_out_of_range(call: object) -> None:
    torch.empty(1, device="neuron")
    with pytest.raises(ValueError, match=r"neuron:7 does not exist.*neuron:0 to neuron:1.*NEURON_RT_NUM_CORES"):
        call(7)  # type: ignore[operator]
