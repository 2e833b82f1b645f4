# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory: what is pinned says so, nothing else does, buffers are reused, DataLoader pins."""

from __future__ import annotations

import threading

import torch
from torch.utils.data import DataLoader, TensorDataset


def test_only_pinned_memory_is_pinned() -> None:
    plain = torch.arange(10.0)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned, plain)
    assert pinned.pin_memory() is pinned
    assert pinned[3:].is_pinned()
    assert not pinned.clone().is_pinned()
    assert not plain.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.empty(0).is_pinned()
    torch.empty(0).pin_memory()


def test_a_pinned_tensor_survives_its_source_and_copies_both_ways() -> None:
    pinned = torch.arange(100_000.0).pin_memory()
    device = pinned.to("neuron", non_blocking=True)
    back = torch.empty(100_000, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(back, torch.arange(100_000.0))


def test_buffers_are_reused() -> None:
    address = torch.empty(5000, pin_memory=True).data_ptr()
    assert torch.empty(5000, pin_memory=True).data_ptr() == address
    torch.accelerator.empty_host_cache()
    kept = torch.empty(10, pin_memory=True)
    torch.accelerator.empty_host_cache()
    assert kept.is_pinned()
    kept.fill_(3)
    assert kept.sum().item() == 30


def test_data_loader() -> None:
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    batches = list(DataLoader(data, batch_size=2, pin_memory=True))
    assert len(batches) == 3
    assert all(part.is_pinned() for batch in batches for part in batch)
    moved = torch.cat([values.to("neuron", non_blocking=True) for values, _ in batches])
    assert moved.cpu().tolist() == torch.arange(12.0).view(6, 2).tolist()


def test_threads() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(100):
            tensor = torch.full((number * 500 + step + 1,), float(number)).pin_memory()
            if not tensor.is_pinned() or tensor.sum().item() != number * tensor.numel():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
