# SPDX-License-Identifier: Apache-2.0
"""Tensors as Python sees them: printing, addresses, storages, DLPack, moving modules, multiprocessing limits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack


def test_print_and_repr() -> None:
    assert repr(torch.arange(3.0).to("neuron")) == "tensor([0., 1., 2.], device='neuron:0')"
    assert repr(torch.tensor([True]).to("neuron:1")) == "tensor([True], device='neuron:1')"
    assert "requires_grad=True" in repr(torch.ones(1, device="neuron", requires_grad=True))
    assert str(torch.empty(0, 3, device="neuron")) == "tensor([], device='neuron:0', size=(0, 3))"
    assert "..." in repr(torch.zeros(2000, device="neuron"))
    parameter = torch.nn.Parameter(torch.zeros(1).to("neuron"))
    assert repr(parameter).startswith("Parameter containing:\ntensor([0.], device='neuron:0'")
    assert torch.zeros(1).to("neuron").type() == "torch.neuron.FloatTensor"
    assert f"{torch.tensor(1.5).to('neuron'):.1f}" == "1.5"
    assert "neuron" in repr(torch.ones(1).to("neuron").untyped_storage())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint64], ids=str
)
def test_print_runs_nothing_on_the_device(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    tensor, large = values.to("neuron"), torch.zeros(2000, dtype=dtype).to("neuron")
    mode = torch.neuron.fallback_mode()
    torch.neuron.set_fallback_mode("error")
    try:
        assert repr(tensor).partition("]")[0] == repr(values).partition("]")[0]
        assert "..." in repr(large)
    finally:
        torch.neuron.set_fallback_mode(mode)


def test_data_ptr_is_a_real_address() -> None:
    tensor = torch.arange(8, dtype=torch.int32).to("neuron")
    torch.neuron.synchronize()
    seen = (ctypes.c_int32 * 8).from_address(tensor.data_ptr())
    assert list(seen) == list(range(8))
    assert tensor[3:].data_ptr() == tensor.data_ptr() + 12
    assert tensor.untyped_storage().data_ptr() == tensor.data_ptr()
    assert tensor.data_ptr() % 512 == 0


def test_storage_identity() -> None:
    tensor = torch.zeros(6).to("neuron")
    view = tensor.view(2, 3)[1]
    assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    view.fill_(4)
    assert tensor.cpu().tolist() == [0, 0, 0, 4, 4, 4]
    assert tensor.untyped_storage().nbytes() == 24
    assert tensor.untyped_storage().device == torch.device("neuron:0")


def test_storage_resize_keeps_the_common_bytes() -> None:
    tensor = torch.arange(4.0).to("neuron")
    storage = tensor.untyped_storage()
    storage.resize_(8000)
    assert storage.nbytes() == 8000
    assert tensor.cpu().tolist() == [0, 1, 2, 3]
    storage.resize_(8)
    assert storage.nbytes() == 8
    storage.resize_(0)
    assert storage.data_ptr() == 0


def test_tensor_resize() -> None:
    tensor = torch.arange(4.0).to("neuron")
    tensor.resize_(2, 3)
    assert tensor.shape == (2, 3)
    assert tensor.flatten()[:4].cpu().tolist() == [0, 1, 2, 3]


def test_storage_moves() -> None:
    storage = torch.arange(3, dtype=torch.uint8).untyped_storage()
    moved = storage.to(device=torch.device("neuron:1"))
    assert moved.device == torch.device("neuron:1")
    assert moved.cpu().tolist() == [0, 1, 2]
    assert moved.clone().cpu().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "share", [torch.from_dlpack, lambda tensor: from_dlpack(to_dlpack(tensor))], ids=["tensor", "capsule"]
)
def test_dlpack_within_the_process(share: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = torch.arange(6.0).to("neuron:1").view(2, 3)
    twin = share(tensor)
    assert twin.device == tensor.device
    assert twin.data_ptr() == tensor.data_ptr()
    twin.fill_(2)
    assert tensor.cpu().tolist() == [[2, 2, 2], [2, 2, 2]]
    address = tensor.data_ptr()
    del tensor
    assert torch.empty(2, 3, device="neuron:1").data_ptr() != address  # the twin still holds the memory
    assert twin.cpu().sum().item() == 12


def test_modules_move_there_and_back() -> None:
    model = torch.nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    assert model.to("neuron").weight.is_neuron
    assert model.to(dtype=torch.bfloat16).weight.dtype == torch.bfloat16
    back = model.float().cpu()
    assert torch.allclose(back.weight, weight, atol=1e-2)
    with torch.device("neuron:1"):
        assert torch.nn.Linear(2, 2).weight.device == torch.device("neuron:1")
    torch.set_default_device("neuron")
    try:
        assert torch.empty(1).is_neuron
    finally:
        torch.set_default_device(None)


def test_tied_weights_stay_tied_where_modules_swap_parameters() -> None:
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    want = first.weight.detach().clone()
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        torch.nn.ModuleList([first, second]).to("neuron:0")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert second.weight is first.weight
    assert first.weight.device == torch.device("neuron:0")
    assert torch.equal(first.weight.detach().cpu(), want)


def test_numpy_needs_the_cpu() -> None:
    tensor = torch.ones(2).to("neuron")
    with pytest.raises(TypeError, match=r"neuron.*cpu"):
        tensor.numpy()
    assert tensor.cpu().numpy().tolist() == [1, 1]
    assert tensor.tolist() == [1, 1]


def test_between_devices() -> None:
    first = torch.arange(5.0).to("neuron:0")
    second = first.to("neuron:1")
    second.add_(1)
    assert first.cpu().tolist() == [0, 1, 2, 3, 4]
    assert second.cpu().tolist() == [1, 2, 3, 4, 5]
    first.copy_(second)
    assert first.cpu().tolist() == [1, 2, 3, 4, 5]


def test_chunks_of_every_dtype_have_an_address_and_a_size() -> None:
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.int64,
                  torch.float64, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
                  torch.float8_e4m3fn, torch.float8_e5m2):  # fmt: skip
        tensor = torch.empty(3, dtype=dtype, device="neuron")
        assert tensor.nbytes == 3 * dtype.itemsize
        assert tensor.data_ptr() != 0
