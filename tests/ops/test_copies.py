# SPDX-License-Identifier: Apache-2.0
"""Copies to, from and between neuron devices, with and without waiting, aliased and staged."""

from __future__ import annotations

import copy

import pytest
import torch


@pytest.fixture(params=["aliased", "staged"])
def _both_ways(request: pytest.FixtureRequest) -> None:
    if request.param == "staged":
        request.getfixturevalue("staged")


@pytest.mark.usefixtures("_both_ways")
def test_every_layout_round_trips() -> None:
    host = torch.arange(24.0).view(2, 3, 4)
    for source in (host, host.transpose(0, 2), host[:, 1::2], host[:0], host[0, 0, 0], host[:1].expand(3, 3, 4)):
        device = source.to("neuron")
        assert torch.equal(device.cpu(), source)
        assert device.stride() == source.to("meta").stride()
        assert torch.equal(device.to("neuron:1").cpu(), source)
        assert torch.equal(device.clone().cpu(), source)


@pytest.mark.usefixtures("_both_ways")
def test_copy_broadcasts_casts_and_writes_windows() -> None:
    host, device = torch.zeros(3, 4), torch.zeros(3, 4, device="neuron")
    for target in (host, device):
        target[1:, ::2].copy_(torch.tensor([5, 6]))
        target.t()[1].copy_(torch.arange(3, device=target.device))
        target[0].copy_(target[2])
    assert torch.equal(device.cpu(), host)


@pytest.mark.usefixtures("_both_ways")
def test_overlapping_arguments_of_one_storage() -> None:
    host = torch.arange(12.0)
    device = host.to("neuron")
    for x in (host, device):
        x[:4].add_(x[4:8]).mul_(x[8:])
        torch.add(x[0:2], x[1:3], out=x[10:12])
        x[:0].add_(1)
    assert torch.equal(device.cpu(), host)


@pytest.mark.usefixtures("_both_ways")
def test_resized_outputs_and_views_of_results() -> None:
    x = torch.arange(10.0, device="neuron")
    out = torch.empty(1, device="neuron")[1:]
    torch.masked_select(x, x > 6, out=out)
    assert out.tolist() == [7, 8, 9]
    x[2:].resize_(3)
    assert x.view(2, 5).sum(0).tolist() == [5, 7, 9, 11, 13]


def test_non_blocking_copies_from_and_to_pinned_memory() -> None:
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    device = torch.zeros(1 << 16, device="neuron")
    device.copy_(host, non_blocking=True)
    back = torch.zeros(1 << 16).pin_memory()
    back.copy_(device, non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(back, host)
    temporary = [torch.full((1 << 12,), float(i)).pin_memory().to("neuron", non_blocking=True) for i in range(20)]
    assert [t[7].item() for t in temporary] == [float(i) for i in range(20)]  # the pinned sources are gone by now
    cast = host.to("neuron", torch.float16, non_blocking=True)
    assert torch.equal(cast.cpu(), host.half())


def test_record_stream_takes_a_stream_of_the_device() -> None:
    x = torch.ones(4, device="neuron")
    x.record_stream(torch.neuron.current_stream())
    assert x.sum().item() == 4


def test_deepcopy_and_pickle_keep_device_and_sharing() -> None:
    x = torch.arange(4.0, device="neuron")
    a, b = copy.deepcopy([x, x[1:]])
    a.add_(1)
    assert b.tolist() == [2, 3, 4]
    assert x.tolist() == [0, 1, 2, 3]


def test_meta_and_sparse_partners() -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        torch.ones(2, device="neuron").copy_(torch.ones(2, device="meta"))
    with pytest.raises(NotImplementedError, match="to_dense"):
        torch.ones(2, 2, device="neuron").copy_(torch.eye(2).to_sparse())
