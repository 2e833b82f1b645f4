# SPDX-License-Identifier: Apache-2.0
"""Streams and events order, wait and time. Slow device work is a queued copy that the host runtime delays."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch

from fresh_process import FreshPython

SLOW = {"NEURON_LIBTORCH_HOST_FAULTS": "delay_ms:tensor_write=250", "NEURON_LIBTORCH_EAGER_FALLBACK": "allow"}


def test_streams_are_distinct_and_current_per_thread_and_device() -> None:
    default = torch.neuron.current_stream()
    assert default == torch.neuron.default_stream() == torch.neuron.current_stream("neuron:0")
    first, second = torch.neuron.Stream(), torch.neuron.Stream()
    assert len({default, first, second}) == 3
    other = torch.neuron.Stream("neuron:1")
    assert other.device == torch.device("neuron:1")
    with torch.neuron.stream(first):
        assert torch.neuron.current_stream() == first
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == first
        seen: list[torch.Stream] = []
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_stream()))
        thread.start()
        thread.join()
        assert seen == [default]
        with torch.neuron.stream(other):
            assert torch.neuron.current_device() == 1
            assert torch.neuron.current_stream("neuron:0") == first
        assert torch.neuron.current_device() == 0
    assert torch.neuron.current_stream() == default
    with second:
        assert torch.neuron.current_stream() == second
    assert "neuron" in repr(first)


def test_priorities_and_native_handles() -> None:
    urgent = torch.Stream("neuron", priority=-1)
    usual = torch.Stream("neuron", priority=0)
    assert urgent != usual
    assert urgent.stream_id % 4 == 1
    assert usual.stream_id % 4 == 0
    assert urgent.native_handle == usual.native_handle != torch.Stream("neuron:1").native_handle


def test_an_idle_device() -> None:
    stream = torch.neuron.Stream()
    assert stream.query()
    stream.synchronize()
    torch.neuron.synchronize()
    event = torch.neuron.Event()
    assert event.query()
    event.synchronize()
    event.record()
    assert event.query()
    stream.wait_event(event)
    stream.wait_stream(torch.neuron.current_stream())
    assert stream.record_event().query()


def test_events_of_two_devices_cannot_be_mixed() -> None:
    event = torch.Event("neuron:0")
    event.record(torch.neuron.current_stream("neuron:0"))
    with pytest.raises((ValueError, RuntimeError), match=r"event of neuron:0 .* stream of neuron:1"):
        event.record(torch.neuron.current_stream("neuron:1"))


def test_elapsed_time_needs_timing() -> None:
    plain, timed = torch.neuron.Event(), torch.neuron.Event(enable_timing=True)
    plain.record()
    timed.record()
    with pytest.raises((ValueError, RuntimeError), match="enable_timing"):
        plain.elapsed_time(timed)


def test_what_is_not_offered_says_so() -> None:
    event = torch.neuron.Event()
    with pytest.raises((NotImplementedError, RuntimeError, AttributeError)):
        event.ipc_handle()
    with pytest.raises(TypeError):
        pickle.dumps(torch.neuron.Stream())


def test_order_and_waiting_with_slow_work(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        host = torch.arange(1000.0).pin_memory()
        device = torch.zeros(1000).to("neuron")

        start, middle, end = (torch.Event("neuron", enable_timing=True) for _ in range(3))
        start.record()
        side = torch.Stream("neuron")
        with side:
            device.copy_(host, non_blocking=True)           # queued: takes a second
        middle.record(side)
        other = torch.Stream("neuron")
        with other:
            device.copy_((host + 1).pin_memory(), non_blocking=True)  # queued behind it
        end.record(other)
        assert start.query() and not middle.query() and not end.query(), "the copies were not queued"
        assert not side.query() and not other.query()
        assert not torch.neuron.default_stream().query()

        other.wait_event(middle)                            # same device: free of charge
        assert not middle.query()
        middle.synchronize()
        assert middle.query() and not end.query(), "synchronize waited for more than the event"
        torch.neuron.default_stream().synchronize()
        assert end.query()
        assert start.elapsed_time(middle) >= 990, start.elapsed_time(middle)
        assert middle.elapsed_time(end) >= 990, middle.elapsed_time(end)
        assert start.elapsed_time(end) >= 1990
        assert device.cpu().tolist() == (torch.arange(1000.0) + 1).tolist(), "the copies ran out of order"
        """,
        **{**SLOW, "NEURON_LIBTORCH_HOST_FAULTS": "delay_ms:tensor_write=1000"},
    )


def test_a_reader_waits_and_memory_in_use_is_not_written_by_the_host(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        host = torch.full((1000,), 5.0).pin_memory()
        device = torch.zeros(1000).to("neuron")
        device.copy_(host, non_blocking=True)
        assert device[3].item() == 5.0                      # .item() waits

        # A freed block goes to the next tensor at once; the host writes it only when the queued copy is done.
        doomed = torch.zeros(1000).to("neuron")
        address = doomed.data_ptr()
        doomed.copy_(host, non_blocking=True)
        del doomed
        fresh = torch.empty(1000, device="neuron")
        assert fresh.data_ptr() == address
        fresh.fill_(9.0)
        torch.neuron.synchronize()
        assert fresh.cpu().tolist() == [9.0] * 1000

        # The source of a queued copy may be dropped by the caller.
        device.copy_(torch.full((1000,), 6.0).pin_memory(), non_blocking=True)
        junk = [torch.full((1000,), -1.0).pin_memory() for _ in range(3)]
        assert device.cpu().tolist() == [6.0] * 1000

        # empty_cache waits for the work that uses the memory it gives back.
        large = torch.empty(8 << 20, device="neuron")
        source = torch.ones(8 << 20).pin_memory()
        large.copy_(source, non_blocking=True)
        event = torch.Event("neuron")
        event.record()
        del large
        assert not event.query()
        torch.neuron.empty_cache()
        assert event.query()
        """,
        **SLOW,
    )


def test_a_stream_of_another_device_waits_for_the_event(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        device = torch.zeros(10).to("neuron:0")
        device.copy_(torch.ones(10).pin_memory(), non_blocking=True)
        event = torch.Event("neuron:0")
        event.record(torch.neuron.current_stream("neuron:0"))
        torch.neuron.synchronize("neuron:1")
        assert not event.query(), "waiting for one device waited for another"
        torch.neuron.current_stream("neuron:1").wait_event(event)
        assert event.query()
        """,
        **SLOW,
    )


def test_an_unfinished_event_has_no_time(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        start, end = torch.Event("neuron", enable_timing=True), torch.Event("neuron", enable_timing=True)
        device = torch.zeros(10).to("neuron")
        start.record()
        device.copy_(torch.ones(10).pin_memory(), non_blocking=True)
        end.record()
        try:
            start.elapsed_time(end)
        except RuntimeError as error:
            assert "must be completed" in str(error), error
        else:
            raise AssertionError("a time for an event that was not reached")
        del end  # an event may go away before it is reached, and the process may end
        """,
        **SLOW,
    )


def test_an_execution_error_surfaces_once_at_the_next_wait(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        device = torch.zeros(10).to("neuron")
        waits = [
            torch.neuron.synchronize,
            lambda: torch.neuron.current_stream().synchronize(),
            lambda: device.cpu(),
            lambda: device[0].item(),
            lambda: torch.accelerator.synchronize(),
        ]
        for wait in waits:
            device.copy_(torch.ones(10).pin_memory(), non_blocking=True)
            try:
                wait()
            except RuntimeError as error:
                assert "neuron:0" in str(error) and "HBM_UE" in str(error) and "1201" in str(error), error
            else:
                raise AssertionError("no error")
            torch.neuron.synchronize()
            device.cpu()
        """,
        NEURON_LIBTORCH_HOST_FAULTS="tensor_write:EXEC_HW_ERR_HBM_UE",
    )
