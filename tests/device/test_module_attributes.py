# SPDX-License-Identifier: Apache-2.0
"""`torch.neuron` has what torch 2.13 looks up on a device module, and each of those works."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch._utils import _get_available_device_type, _get_device_index, _is_privateuse1_backend_available

import libtorch_neuronx_lite.device

# Who asks in torch, and what for, is in the documentation of PrivateUse1 and in torch's own sources.
LOOKED_UP_BY_TORCH = [
    "is_available",
    "device_count",
    "current_device",
    "is_initialized",
    "device",
    "_is_in_bad_fork",
    "manual_seed_all",
    "get_rng_state",
    "set_rng_state",
    "get_amp_supported_dtype",
    "synchronize",
    "current_stream",
    "stream",
    "Stream",
    "Event",
    "empty_cache",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "_lazy_init",
    "_initialized",
    "get_device_properties",
    "get_device_name",
]
USED_BY_SERVING_PLUGINS = [
    "set_device",
    "set_stream",
    "mem_get_info",
    "max_memory_allocated",
    "reset_peak_memory_stats",
]


@pytest.mark.parametrize("name", [*LOOKED_UP_BY_TORCH, *USED_BY_SERVING_PLUGINS])
def test_attribute_exists(name: str) -> None:
    assert hasattr(torch.neuron, name)


def test_the_module_is_registered_under_its_name() -> None:
    assert torch.neuron is libtorch_neuronx_lite.device
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.get_device_module(torch.device("neuron:1")) is torch.neuron
    assert sys.modules["torch.neuron"] is torch.neuron
    assert torch._C._get_privateuse1_backend_name() == "neuron"
    assert torch.utils.backend_registration._privateuse1_backend_name == "neuron"


def test_every_public_name_is_there_and_documented() -> None:
    for name in torch.neuron.__all__:
        value = getattr(torch.neuron, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__ is not None or name == "_lazy_init", name


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"torch\.neuron.*no_such_thing"):
        torch.neuron.no_such_thing  # noqa: B018


def test_generic_helpers_of_torch_find_the_device() -> None:
    assert _get_available_device_type() == "neuron"
    assert _is_privateuse1_backend_available()
    assert _get_device_index("neuron:1") == 1
    assert _get_device_index(torch.device("neuron"), optional=True) == 0


def test_every_place_in_torch_that_asks_for_the_backend_name_reads_known_attributes() -> None:
    """A new file of torch that reads attributes of the custom device module shows up here with a new torch."""
    root = Path(torch.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "_get_privateuse1_backend_name" in path.read_text(encoding="utf-8", errors="ignore")
    }
    assert {"random.py", "serialization.py", "amp/autocast_mode.py", "_utils.py", "storage.py"} <= asking


def test_properties() -> None:
    properties = torch.neuron.get_device_properties("neuron:1")
    assert properties.index == 1
    assert properties.runtime == "host"
    assert properties.name == torch.neuron.get_device_name(1)
    assert properties.total_memory == torch.neuron.mem_get_info(1)[1]
    assert properties.runtime_version


def test_dtypes() -> None:
    supported = torch.neuron.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool} <= supported
    assert supported.isdisjoint({torch.float64, torch.uint16, torch.uint32, torch.uint64})
    assert torch.neuron.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    assert torch.neuron.is_bf16_supported()


def test_generated_methods() -> None:
    cpu = torch.arange(4.0)
    tensor = cpu.neuron()
    assert tensor.is_neuron
    assert not cpu.is_neuron
    assert tensor.device == torch.device("neuron:0")
    assert torch.nn.Linear(2, 2).neuron().weight.is_neuron
    storage = cpu.untyped_storage().neuron()
    assert storage.is_neuron
    assert torch.nn.utils.rnn.pack_sequence([cpu]).neuron().data.is_neuron


def test_autocast_uses_the_devices_dtypes() -> None:
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("neuron")
        assert torch.get_autocast_dtype("neuron") is torch.bfloat16
    with pytest.warns(UserWarning, match="neuron"), torch.autocast("neuron", dtype=torch.float64):
        assert not torch.is_autocast_enabled("neuron")
