# SPDX-License-Identifier: Apache-2.0
"""The caching allocator: reuse without runtime calls, statistics, giving back, fragmentation, threads."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from libtorch_neuronx_lite import _C

BLOCK = 512
MiB = 1 << 20


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    """Each test starts with no cached segment and the counters at zero."""
    gc.collect()
    torch.empty(1, device="neuron")
    torch.neuron.empty_cache()
    torch.neuron.reset_accumulated_memory_stats()
    torch.neuron.reset_peak_memory_stats()
    yield
    gc.collect()
    torch.neuron.empty_cache()


def stat(name: str) -> int:
    value: int = torch.neuron.memory_stats()[name]
    return value


def test_a_freed_block_is_reused_at_the_same_address_without_a_runtime_call() -> None:
    first = torch.empty(1000, device="neuron")
    address, handle = first.data_ptr(), _C.tensor_handle(first)
    calls = stat("num_device_alloc")
    for _ in range(50):
        del first
        first = torch.empty(1000, device="neuron")
        assert first.data_ptr() == address
        assert _C.tensor_handle(first) == handle
    assert stat("num_device_alloc") == calls
    assert stat("num_device_free") == 0


def test_small_tensors_share_a_segment() -> None:
    tensors = [torch.empty(100, device="neuron") for _ in range(100)]
    assert stat("segment.small_pool.current") == 1
    assert stat("reserved_bytes.all.current") == 2 * MiB
    assert stat("allocated_bytes.all.current") == 100 * BLOCK
    assert stat("requested_bytes.all.current") == 100 * 400
    addresses = sorted(tensor.data_ptr() for tensor in tensors)
    assert all(b - a >= BLOCK for a, b in itertools.pairwise(addresses))


@pytest.mark.parametrize(
    ("size", "pool", "segment"),
    [
        (1, "small", 2 * MiB),
        (MiB, "small", 2 * MiB),
        (MiB + 1, "large", 20 * MiB),
        (10 * MiB, "large", 20 * MiB),
        (10 * MiB + 1, "large", 12 * MiB),
        (33 * MiB, "large", 34 * MiB),
    ],
)
def test_segment_sizes(size: int, pool: str, segment: int) -> None:
    before = torch.neuron.mem_get_info()[0]
    tensor = torch.empty(size, dtype=torch.uint8, device="neuron")
    assert tensor.numel() == size
    assert stat(f"segment.{pool}_pool.current") == 1
    assert stat(f"reserved_bytes.{pool}_pool.current") == segment
    assert before - torch.neuron.mem_get_info()[0] == segment


def test_empty_cache_gives_back_only_segments_without_live_tensors() -> None:
    kept = torch.full((100,), 7.0).to("neuron")
    gone = [torch.empty(3 * MiB, device="neuron") for _ in range(4)]
    free_before = torch.neuron.mem_get_info()[0]
    del gone
    assert torch.neuron.mem_get_info()[0] == free_before
    torch.neuron.empty_cache()
    assert torch.neuron.mem_get_info()[0] == free_before + 4 * 12 * MiB
    assert stat("segment.all.current") == 1
    assert stat("num_device_free") == 4
    assert kept.cpu().tolist() == [7.0] * 100
    del kept
    torch.neuron.empty_cache("neuron:0")
    assert torch.neuron.memory_reserved() == 0


def test_neighbours_merge_so_that_the_whole_segment_is_one_block_again() -> None:
    tensors = [torch.empty(5 * MiB // 4, device="neuron") for _ in range(4)]  # 5 MiB each: one segment
    assert stat("segment.all.current") == 1
    for index in (1, 3, 0, 2):
        tensors[index] = torch.empty(0, device="neuron")
    assert _C.largest_free_block(0) == 20 * MiB
    whole = torch.empty(10 * MiB, dtype=torch.uint8, device="neuron")
    assert stat("segment.all.current") == 1
    assert stat("inactive_split.all.current") == 1
    del whole
    assert stat("inactive_split.all.current") == 0
    assert stat("inactive_split_bytes.all.current") == 0


def test_the_smallest_block_that_fits_is_taken() -> None:
    large = torch.empty(40 * MiB, dtype=torch.uint8, device="neuron")
    small = torch.empty(14 * MiB, dtype=torch.uint8, device="neuron")
    address = small.data_ptr()
    del large, small
    assert torch.empty(13 * MiB, dtype=torch.uint8, device="neuron").data_ptr() == address


def test_peaks() -> None:
    tensors = [torch.empty(MiB // 4, device="neuron") for _ in range(3)]
    del tensors
    assert torch.neuron.memory_allocated() == 0
    assert torch.neuron.max_memory_allocated() == 3 * MiB
    assert torch.neuron.max_memory_reserved() == torch.neuron.memory_reserved() == 4 * MiB
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == 0
    assert "neuron:0" in torch.neuron.memory_summary()


def test_devices_are_counted_apart() -> None:
    before = torch.neuron.memory_allocated("neuron:1")
    other = torch.empty(1000, device="neuron:1")
    assert torch.neuron.memory_allocated("neuron:1") == before + 4096
    assert torch.neuron.memory_allocated("neuron:0") == 0
    del other


def test_zero_bytes() -> None:
    tensor = torch.empty(0, device="neuron")
    assert tensor.data_ptr() == 0
    assert stat("allocation.all.current") == 0
    assert _C.tensor_handle(tensor) == 0
    assert tensor.to("neuron:1").device.index == 1
    assert tensor.cpu().numel() == 0


def test_handles_are_windows_of_exactly_the_tensor() -> None:
    base = torch.arange(64, dtype=torch.float32).to("neuron")
    assert _C.tensor_handle(base) == _C.tensor_handle(base.view(8, 8))
    row = base.view(8, 8)[3]
    assert _C.tensor_handle(row) != _C.tensor_handle(base)
    assert _C.tensor_handle(row) == _C.tensor_handle(base[24:32])
    device, _segment, offset, after = _C.locate(row.data_ptr())
    assert (device, offset) == (0, 24 * 4)
    assert offset + after == 2 * MiB
    assert _C.locate(torch.empty(1).data_ptr()) is None
    with pytest.raises(ValueError, match=r"contiguous.*strides \[1, 8\]"):
        _C.tensor_handle(base.view(8, 8).t())
    with pytest.raises(ValueError, match="expected a tensor on neuron, got one on cpu"):
        _C.tensor_handle(torch.empty(1))


def test_many_windows_of_one_tensor_are_let_go_with_it() -> None:
    base = torch.empty(5000, 4, device="neuron")
    handles = {_C.tensor_handle(base[index]) for index in range(5000)}
    assert len(handles) == 5000
    del base
    again = torch.empty(5000, 4, device="neuron")
    again.fill_(3)
    assert _C.tensor_handle(again[17]) != 0
    assert again.sum().item() == 60_000


def test_tensors_do_not_overlap_and_keep_their_bytes_in_random_use() -> None:
    generator = random.Random(5)
    live: list[tuple[torch.Tensor, int]] = []
    for step in range(400):
        if live and generator.random() < 0.45:
            tensor, value = live.pop(generator.randrange(len(live)))
            assert bool((tensor == value).all())
        else:
            size = generator.choice([1, 300, 511, 5_000, 300_000, 1_500_000])
            live.append((torch.full((size,), step % 250, dtype=torch.uint8).to("neuron"), step % 250))
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t, _ in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for tensor, value in live:
        assert bool((tensor == value).all())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=3 * MiB), min_size=1, max_size=12), st.randoms())
def test_statistics_add_up(sizes: list[int], order: random.Random) -> None:
    before = stat("allocated_bytes.all.current")
    tensors = [torch.empty(size, dtype=torch.uint8, device="neuron") for size in sizes]
    assert stat("requested_bytes.all.current") >= sum(sizes)
    assert stat("allocated_bytes.all.current") - before >= sum(sizes)
    assert stat("reserved_bytes.all.current") >= stat("allocated_bytes.all.current")
    for name in ("allocated_bytes", "reserved_bytes", "segment", "allocation"):
        assert stat(f"{name}.all.current") == stat(f"{name}.small_pool.current") + stat(f"{name}.large_pool.current")
    order.shuffle(tensors)
    tensors.clear()
    assert stat("allocated_bytes.all.current") == before
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() == 0


def test_threads() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        generator = random.Random(number)
        held: list[tuple[torch.Tensor, float]] = []
        for step in range(150):
            value = float(number * 1000 + step)
            tensor = torch.full((generator.randrange(1, 3000),), value).to("neuron")
            held.append((tensor, value))
            if len(held) > 10:
                old, expected = held.pop(generator.randrange(len(held)))
                if not bool((old.cpu() == expected).all()):
                    failures.append(f"thread {number} step {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert torch.neuron.memory_allocated() == 0


def test_record_stream_takes_our_streams_only() -> None:
    tensor = torch.empty(4, device="neuron")
    tensor.record_stream(torch.Stream("neuron"))
    with pytest.raises((ValueError, RuntimeError)):
        tensor.record_stream(torch.Stream(stream_id=0, device_index=0, device_type=0))
