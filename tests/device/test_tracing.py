# SPDX-License-Identifier: Apache-2.0
"""What tracing asks of a device: FakeTensor, meta, Dynamo's device interface, profiler, and gloo's barrier."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fresh_process import FreshPython


def test_fake_tensors() -> None:
    with FakeTensorMode():
        made = torch.empty(3, 4, device="neuron")
        assert made.device == torch.device("neuron:0")
        assert (made @ torch.empty(4, 2, device="neuron")).shape == (3, 2)
        assert torch.randn(2, device="neuron:1").device == torch.device("neuron:1")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(torch.ones(2, device="neuron:1"))
    assert fake.device == torch.device("neuron:1")
    assert fake.to("cpu").device.type == "cpu"


def test_fake_tensors_start_no_runtime(fresh_python: FreshPython) -> None:
    fresh_python("""
        import torch, libtorch_neuronx_lite
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            assert torch.empty(3, device="neuron").device.type == "neuron"
            assert torch.zeros(3, device="neuron:1").add(1).device == torch.device("neuron:1")
        assert not torch.neuron.is_initialized()
    """)


def test_meta_tensors_become_real_ones() -> None:
    layer = torch.nn.Linear(3, 2, device="meta").to_empty(device="neuron")
    assert layer.weight.is_neuron


def test_the_device_interface(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import sys, torch, libtorch_neuronx_lite
        assert "torch._dynamo" not in sys.modules
        from libtorch_neuronx_lite.device import dynamo_interface
        dynamo_interface.register()
        dynamo_interface.register()
        from torch._dynamo.device_interface import get_interface_for_device, get_registered_device_interfaces
        interface = get_interface_for_device("neuron")
        assert get_interface_for_device(torch.device("neuron:1")) is interface
        assert {"neuron", "neuron:0", "neuron:1"} <= dict(get_registered_device_interfaces()).keys()
        assert interface.is_available() and interface.device_count() == 2 and interface.current_device() == 0
        assert interface.exchange_device(1) == 0 and interface.maybe_exchange_device(0) == 1
        assert issubclass(interface.Stream, torch.Stream) and issubclass(interface.Event, torch.Event)
        assert interface.current_stream() == torch.neuron.current_stream()
        interface.set_stream(interface.Stream("neuron"))
        assert interface.get_raw_stream(0) == torch.neuron.current_stream().stream_id != 0
        interface.synchronize()
        assert interface.get_device_properties("neuron:1").index == 1
        interface.Worker.set_device(1)
        assert interface.Worker.current_device() == 1
        assert interface.is_bf16_supported() and interface.is_dtype_supported(torch.bfloat16)
        assert not interface.is_triton_capable()
        assert interface.memory_allocated() == torch.neuron.memory_allocated()
        with interface.device(1):
            assert interface.current_device() == 1

        @torch.compile(backend="eager", fullgraph=True)
        def traced(x):
            return x + torch.ones(3, device=x.device)

        assert traced(torch.zeros(3).to("neuron:1")).cpu().tolist() == [1, 1, 1]

        @torch.compile(backend="eager", fullgraph=True)
        def on_current_device(x):
            return x * torch.neuron.device_count() if torch.accelerator.is_available() else x

        assert on_current_device(torch.ones(2).to("neuron")).cpu().tolist() == [2, 2]
        """,
        NEURON_LIBTORCH_EAGER_FALLBACK="allow",
    )


def test_the_profiler_records_without_device_rows() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        torch.ones(3, device="neuron").add(1)
    assert any("aten::add" in event.key for event in profile.key_averages())


def test_barrier_and_collectives_with_gloo(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        dist.barrier()
        objects = [{"answer": 42}]
        dist.broadcast_object_list(objects)
        assert objects == [{"answer": 42}]
    finally:
        dist.destroy_process_group()


def test_gradients_flow_through_the_device() -> None:
    x = torch.arange(3.0).to("neuron:1").requires_grad_()
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.device == torch.device("neuron:1")
    assert x.grad.cpu().tolist() == [0, 2, 4]
    with pytest.raises(RuntimeError, match=r"on the same device|Expected all tensors"):
        x + torch.ones(3)
