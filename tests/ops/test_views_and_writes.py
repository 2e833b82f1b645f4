# SPDX-License-Identifier: Apache-2.0
"""Views share storage, in-place writes land, and results keep the layout CPU eager gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(6, 4),
    "transpose": lambda x: x.transpose(0, 1),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[2],
    "unfold": lambda x: x.unfold(1, 3, 2),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x[:1].expand(5, 6),
    "as_strided": lambda x: x.as_strided((2, 2), (7, 1), 3),
    "split": lambda x: x.split(2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "view_dtype": lambda x: x.view(torch.int32),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "alias": torch.ops.aten.alias.default,
    "detach": lambda x: x.detach(),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
}


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.arange(24.0).view(4, 6)
    return host, host.to("neuron")


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_storage_and_geometry(name: str) -> None:
    host, device = _pair()
    want, got = VIEWS[name](host), VIEWS[name](device)
    assert got.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()
    assert (got.shape, got.stride(), got.storage_offset()) == (want.shape, want.stride(), want.storage_offset())
    if name != "expand":
        want.fill_(9)
        got.fill_(9)
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("view", [torch.view_as_real, torch.real, torch.imag])
def test_complex_views_write_through(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    host = torch.tensor([1 + 2j, 3 - 4j])
    device = host.to("neuron")
    view(host).mul_(3)
    view(device).mul_(3)
    assert torch.equal(device.cpu(), host)
    pairs = torch.arange(4.0, device="neuron").view(2, 2)
    torch.view_as_complex(pairs).zero_()
    assert pairs.cpu().tolist() == [[0, 0], [0, 0]]


def test_a_lazy_conjugate_and_negation_resolve() -> None:
    host = torch.tensor([1 + 2j, 3 - 4j])
    device = host.to("neuron")
    assert device.conj().is_conj()
    assert torch.equal(device.conj().cpu(), host.conj().resolve_conj())
    assert torch.equal(device.conj().imag.cpu(), host.conj().imag.resolve_neg())
    assert torch.equal((device.conj() * device).cpu(), host.conj() * host)


def test_in_place_through_a_non_contiguous_view() -> None:
    host, device = _pair()
    host.t()[::2].add_(1).mul_(2)
    device.t()[::2].add_(1).mul_(2)
    assert torch.equal(device.cpu(), host)


def test_an_in_place_write_moves_the_version() -> None:
    x = torch.ones(2, device="neuron", requires_grad=True)
    y = x * x
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_out_is_resized_and_returned() -> None:
    a = torch.arange(6.0, device="neuron")
    out = torch.empty(0, device="neuron")
    assert torch.add(a, a, out=out) is out
    assert out.cpu().tolist() == [0, 2, 4, 6, 8, 10]
    indices = torch.empty(0, dtype=torch.int64, device="neuron")
    values = torch.empty(0, device="neuron")
    torch.sort(a.view(2, 3), dim=1, descending=True, out=(values, indices))
    assert indices.cpu().tolist() == [[2, 1, 0], [2, 1, 0]]


def test_out_with_elements_warns_and_resizes_as_on_the_cpu() -> None:
    x, out = torch.arange(3.0, device="neuron"), torch.ones(7, device="neuron")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.masked_select(x, x != 1, out=out)
    assert out.cpu().tolist() == [0, 2]


def test_overlapping_writes_are_refused_as_on_the_cpu() -> None:
    x = torch.arange(4.0, device="neuron")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.add(x[:3], 1, out=x[1:])
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(4).add_(1)


def test_resize_keeps_contents_and_set_shares() -> None:
    x = torch.arange(4.0, device="neuron")
    x.resize_(2, 4)
    assert x.view(-1)[:4].cpu().tolist() == [0, 1, 2, 3]
    y = torch.empty(0, device="neuron").set_(x)
    assert y.is_set_to(x)
    z = torch.empty(0, device="neuron").set_(x.untyped_storage(), 1, (2,), (2,))
    z.fill_(8)
    assert x.view(-1)[:4].cpu().tolist() == [0, 8, 2, 8]
    assert x.set_().numel() == 0


def test_set_data_swaps_the_tensor() -> None:
    x = torch.ones(2, device="neuron", requires_grad=True)
    x.data = torch.zeros(3, device="neuron")
    assert x.shape == (3,)
    x.data.copy_(torch.arange(3.0))
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_memory_format_is_kept(memory_format: torch.memory_format) -> None:
    host = torch.randn(2, 3, 4, 5).contiguous(memory_format=memory_format)
    device = host.to("neuron")
    assert device.stride() == host.stride()
    for got, want in [(device * 2, host * 2), (device.clone(), host), (torch.relu(device), torch.relu(host))]:
        assert got.stride() == want.stride()
    weight = torch.randn(6, 3, 3, 3)
    want = torch.conv2d(host, weight)
    got = torch.conv2d(device, weight.to("neuron"))
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want)


def test_a_result_occupies_device_memory_once() -> None:
    x = torch.zeros(1 << 20, device="neuron")
    before = torch.neuron.memory_allocated()
    y = torch.sort(x)
    assert torch.neuron.memory_allocated() - before == y.values.nbytes + y.indices.nbytes


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
          torch.uint64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_casts_agree_with_the_cpu(target: torch.dtype) -> None:
    host = torch.tensor([0.0, 1.0, 2.5, 100.0])
    assert torch.equal(host.to("neuron").to(target).cpu().float(), host.to(target).float())
    assert torch.equal(host.to("neuron", target).to("cpu", torch.float64), host.to(target).double())


def test_printing() -> None:
    host = torch.tensor([[1.5, float("nan")], [float("inf"), -2.0]])
    assert str(host.to("neuron")) == str(host)[:-1] + ", device='neuron:0')"
    assert repr(torch.zeros(0, device="neuron:1")) == "tensor([], device='neuron:1')"
    assert f"{torch.tensor(2.5, device='neuron'):.2f}" == "2.50"


def test_numpy_gives_torchs_own_error() -> None:
    with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        torch.ones(2, device="neuron").numpy()


def test_unwritten_memory_is_filled_when_deterministic_algorithms_are_asked_for() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4, device="neuron").isnan().all()
        assert torch.empty_strided((2, 3), (1, 2), device="neuron", dtype=torch.bfloat16).isnan().all()
        assert (torch.empty(4, device="neuron", dtype=torch.int16) == torch.iinfo(torch.int16).max).all()
        assert torch.ones(3, device="neuron").sum().item() == 3
    finally:
        torch.use_deterministic_algorithms(False)
