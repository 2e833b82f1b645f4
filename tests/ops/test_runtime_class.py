# SPDX-License-Identifier: Apache-2.0
"""torch.classes.neuron.Runtime: the handle that serving plugins make at every call site."""

from __future__ import annotations

import pytest
import torch

from fresh_process import FreshPython


def test_memory_statistics_follow_allocations() -> None:
    runtime = torch.classes.neuron.Runtime()
    runtime.initialize()
    used, free = runtime.get_vnc_memory_stats()
    keep = torch.empty(96 << 20, dtype=torch.uint8, device="neuron")
    used_after, free_after = torch.classes.neuron.Runtime().get_vnc_memory_stats()
    assert used_after - used >= keep.nbytes
    assert used_after + free_after == used + free


def test_counts_and_instance() -> None:
    runtime = torch.classes.neuron.Runtime()
    assert runtime.get_visible_nc_count() == torch.neuron.device_count()
    family, size, architecture, revision = runtime.get_instance_info()
    assert isinstance(family, int)
    assert isinstance(size, int)
    assert architecture == "host"
    assert isinstance(revision, str)


def test_profiling_is_not_supported() -> None:
    runtime = torch.classes.neuron.Runtime()
    with pytest.raises(NotImplementedError, match="not supported on this runtime"):
        runtime.start_profiling("/nowhere", ["device"], [0], 1000, None)
    with pytest.raises(NotImplementedError, match="not supported on this runtime"):
        runtime.start_profiling(output_dir="/nowhere")
    with pytest.raises(NotImplementedError, match="not supported on this runtime"):
        runtime.stop_profiling()


def test_after_unsafe_close_tensors_may_go_and_new_ones_are_refused() -> None:
    FreshPython()(
        """
        import torch, libtorch_neuronx_lite
        runtime = torch.classes.neuron.Runtime()
        assert runtime.get_visible_nc_count() >= 1  # needs no initialised runtime
        x = torch.ones(4).to("neuron")
        runtime.unsafe_close()
        del x
        try:
            torch.empty(1 << 20, device="neuron")
        except RuntimeError as error:
            assert "clos" in str(error).lower(), error
        else:
            raise AssertionError("allocation after close")
        """
    )
