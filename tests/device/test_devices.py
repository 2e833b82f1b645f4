# SPDX-License-Identifier: Apache-2.0
"""Choosing a device: guards, threads, and indices that do not exist."""

from __future__ import annotations

import threading

import pytest
import torch

from fresh_process import FreshPython


def test_a_tensor_lives_where_it_was_asked_for() -> None:
    assert torch.empty(2, device="neuron").device == torch.device("neuron:0")
    assert torch.empty(2, device="neuron:1").device == torch.device("neuron:1")
    assert torch.empty(2, device=1).device == torch.device("neuron:1")
    assert torch.zeros(2).to("neuron:1").device == torch.device("neuron:1")


def test_context_managers_restore() -> None:
    with torch.neuron.device(1):
        assert torch.neuron.current_device() == 1
        with torch.neuron.device("neuron:0"):
            assert torch.neuron.current_device() == 0
        assert torch.neuron.current_device() == 1
    assert torch.neuron.current_device() == 0
    other = torch.empty(1, device="neuron:1")
    with torch.neuron.device_of(other):
        assert torch.neuron.current_device() == 1
    with torch.neuron.device_of(torch.empty(1)):
        assert torch.neuron.current_device() == 0
    with pytest.raises(RuntimeError, match="inside"), torch.neuron.device(1):
        raise RuntimeError("inside")
    assert torch.neuron.current_device() == 0


def test_the_current_device_belongs_to_the_thread() -> None:
    torch.neuron.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.neuron.current_device() == 1


def test_exchange() -> None:
    assert torch.neuron.exchange_device(1) == 0
    assert torch.neuron.maybe_exchange_device(-1) == 1
    assert torch.neuron.current_device() == 1
    torch.neuron.set_device(-1)
    assert torch.neuron.current_device() == 1


MISSING = r"neuron:2 does not exist: this process sees 2 neuron cores, neuron:0 to neuron:1\. NEURON_RT_NUM_CORES or "


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.empty(1, device="neuron:2"),
        lambda: torch.empty(0, device="neuron:2"),
        lambda: torch.ones(1).to("neuron:2"),
        lambda: torch.neuron.set_device(2),
        lambda: torch.neuron.synchronize(2),
        lambda: torch.neuron.mem_get_info(2),
        lambda: torch.neuron.get_device_properties(2),
        lambda: torch.neuron.get_rng_state(2),
        lambda: torch.neuron.empty_cache(2),
        lambda: torch.Stream("neuron:2"),
        lambda: torch.Generator("neuron:2"),
        lambda: torch.neuron.device(2).__enter__(),
    ],
)
def test_an_index_out_of_range_names_the_range_and_the_variable(use: object) -> None:
    with pytest.raises(ValueError, match=MISSING):
        use()  # type: ignore[operator]
    assert torch.neuron.current_device() == 0


def test_a_device_of_another_type() -> None:
    with pytest.raises(ValueError, match="expected a neuron device, got 'cpu'"):
        torch.neuron.set_device("cpu")


@pytest.mark.parametrize(
    ("variable", "value", "count", "message"),
    [
        ("NEURON_RT_NUM_CORES", "1", 1, "this process sees 1 neuron core, neuron:0."),
        ("NEURON_RT_NUM_CORES", "3", 3, "this process sees 3 neuron cores, neuron:0 to neuron:2."),
        ("NEURON_RT_VISIBLE_CORES", "60-61,63", 3, "this process sees 3 neuron cores, neuron:0 to neuron:2."),
    ],
)
def test_the_environment_sets_the_count(
    fresh_python: FreshPython, variable: str, value: str, count: int, message: str
) -> None:
    """The variable is set after the import and before the first use, as serving plugins do."""
    out = fresh_python(f"""
        import os, torch, libtorch_neuronx_lite
        os.environ[{variable!r}] = {value!r}
        assert torch.neuron.device_count() == {count}, torch.neuron.device_count()
        assert not torch.neuron.is_initialized()
        torch.zeros(2).to("neuron:{count - 1}")
        assert torch.neuron.is_initialized()
        try:
            torch.empty(1, device="neuron:9")
        except ValueError as error:
            print(error)
    """)
    assert message in out
