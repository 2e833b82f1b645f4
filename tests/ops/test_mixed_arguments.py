# SPDX-License-Identifier: Apache-2.0
"""Lists, optional tensors, scalars on the CPU, tensors of other devices, and kinds the device does not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def test_tensor_lists() -> None:
    parts = [torch.full((2,), float(i), device="neuron") for i in range(3)]
    assert torch.cat(parts).tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.stack(parts, dim=1).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert [t.tolist() for t in torch._foreach_add(parts, 1)] == [[1, 1], [2, 2], [3, 3]]
    torch._foreach_mul_(parts, parts)
    assert [t.tolist() for t in parts] == [[0, 0], [1, 1], [4, 4]]
    many = [torch.full((1,), float(i), device="neuron") for i in range(100)]
    torch._foreach_add_(many, many)
    assert [t.item() for t in many] == [2.0 * i for i in range(100)]
    with pytest.raises(RuntimeError, match="cpu"):
        torch.cat([parts[0], torch.ones(2)])


def test_optional_tensors_in_lists() -> None:
    x = torch.arange(12.0, device="neuron").view(3, 4)
    rows = torch.tensor([2, 0], device="neuron")
    assert x[:, rows].tolist() == [[2, 0], [6, 4], [10, 8]]
    assert x[torch.tensor([1])].tolist() == [[4, 5, 6, 7]]  # indices may stay on the CPU
    x[:, rows] = torch.tensor(-1.0)
    assert x.tolist() == [[-1, 1, -1, 3], [-1, 5, -1, 7], [-1, 9, -1, 11]]
    x.index_put_((rows,), torch.ones((), device="neuron"), accumulate=True)
    assert x[0].tolist() == [0, 2, 0, 4]


def test_scalars_on_the_cpu_mix() -> None:
    x = torch.arange(3.0, device="neuron")
    for result in (x + torch.tensor(2.0), torch.tensor(2.0) + x, torch.add(x, 2)):
        assert result.device == x.device
        assert result.tolist() == [2, 3, 4]
    assert torch.where(x > 1, torch.tensor(5.0), x).tolist() == [0, 1, 5]
    assert (x.to(torch.bfloat16) + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.bfloat16


MIXES: dict[str, Callable[[], object]] = {
    "add": lambda: torch.ones(2, device="neuron") + torch.ones(2),
    "mm": lambda: torch.ones(2, 2, device="neuron") @ torch.ones(2, 2),
    "two neuron devices": lambda: torch.ones(2, device="neuron:0") + torch.ones(2, device="neuron:1"),
    "two neuron devices, boxed": lambda: torch.ones(2, 2, device="neuron:0") @ torch.ones(2, 2, device="neuron:1"),
    "written on the cpu": lambda: torch.ones(2).add_(torch.ones(2, device="neuron")),
    "scalar written on the cpu": lambda: torch.ones(()).add_(torch.ones((), device="neuron")),
    "out on the cpu": lambda: torch.sort(torch.ones(2, device="neuron"), out=(torch.ones(2), torch.ones(2).long())),
}


@pytest.mark.parametrize("name", MIXES)
def test_other_mixes_give_torchs_error(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but found"):
        MIXES[name]()


def test_a_cpu_tensor_indexed_by_neuron_gives_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.arange(3)[torch.tensor([1], device="neuron")]


def test_the_second_device_computes_on_itself() -> None:
    x = torch.arange(3.0, device="neuron:1")
    assert (x * 2).device == torch.device("neuron:1")
    assert torch.sort(x).indices.device == torch.device("neuron:1")
    assert x.to("neuron:0").add(1).tolist() == [1, 2, 3]


REFUSED: dict[str, Callable[[], object]] = {
    "sparse coo": lambda: torch.eye(3).to_sparse().to("neuron"),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr().to("neuron").sum(),
    "sparse result": lambda: torch.eye(3, device="neuron").to_sparse(),
    "sparse factory": lambda: torch.empty(3, 3, device="neuron", layout=torch.sparse_coo),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8).to("neuron"),
    "quantized result": lambda: torch.quantize_per_tensor(torch.ones(3, device="neuron"), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="neuron") * 2,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*Sparse invariant checks")
def test_kinds_the_device_does_not_hold_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"neuron (holds dense strided tensors only|does not hold quantized)"):
        REFUSED[name]()


def test_pinning_a_neuron_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="neuron").pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="neuron", pin_memory=True)


def test_a_custom_operator_with_a_cpu_kernel_runs() -> None:
    library = torch.library.Library("nxl_ops_test", "DEF")
    library.define("twice(Tensor x, Tensor(a!) total) -> Tensor")

    def twice(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum())
        return x * 2

    library.impl("twice", twice, "CPU")
    x = torch.arange(3.0, device="neuron")
    total = torch.zeros((), device="neuron")
    assert torch.ops.nxl_ops_test.twice(x, total).tolist() == [0, 2, 4]
    assert total.item() == 3
    library._destroy()
    again = torch.library.Library("nxl_ops_test", "DEF")  # a new schema at what may be the old one's address
    again.define("thrice(Tensor[] xs) -> Tensor[]")
    again.impl("thrice", lambda xs: [3 * t for t in xs], "CPU")
    assert [t.tolist() for t in torch.ops.nxl_ops_test.thrice([x, x])] == [[0, 3, 6], [0, 3, 6]]
    again._destroy()
