# SPDX-License-Identifier: Apache-2.0
"""Running out of device memory: what the error says, and that the process goes on."""

from __future__ import annotations

from fresh_process import FreshPython

LIMIT = {"NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB": "64", "NEURON_LIBTORCH_EAGER_FALLBACK": "allow"}


def test_the_error_names_used_asked_and_limit(fresh_python: FreshPython) -> None:
    out = fresh_python(
        """
        import torch, libtorch_neuronx_lite
        total = torch.neuron.mem_get_info()[1]
        assert total == torch.neuron.mem_get_info()[0], torch.neuron.mem_get_info()
        kept = torch.empty(30 << 20, dtype=torch.uint8, device="neuron")
        try:
            torch.empty(50 << 20, dtype=torch.uint8, device="neuron")
        except torch.OutOfMemoryError as error:
            print(error)
        stats = torch.neuron.memory_stats()
        assert stats["num_ooms"] == 1 and stats["num_alloc_retries"] == 1, stats
        kept.fill_(1)
        assert int(kept.sum()) == 30 << 20
        del kept
        torch.empty(50 << 20, dtype=torch.uint8, device="neuron").fill_(0)
        """,
        **LIMIT,
    )
    assert "neuron:0 out of memory: tried to allocate 50.00 MiB (52428800 bytes)" in out
    assert "30.00 MiB of" in out
    assert "30.00 MiB by live tensors" in out


def test_cached_segments_are_given_back_before_the_error(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        for _ in range(3):
            torch.empty(30 << 20, dtype=torch.uint8, device="neuron")  # cached afterwards
            torch.empty(40 << 20, dtype=torch.uint8, device="neuron")  # only fits when the first is given back
        assert torch.neuron.memory_stats()["num_ooms"] == 0
        assert torch.neuron.memory_stats()["num_alloc_retries"] >= 1
        """,
        **LIMIT,
    )


def test_the_last_bytes_of_the_core_can_be_used(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        free = torch.neuron.mem_get_info()[0]
        large = torch.empty(free - (6 << 20), dtype=torch.uint8, device="neuron")
        medium = torch.empty(2 << 20, dtype=torch.uint8, device="neuron")  # a 20 MiB segment does not fit, 2 MiB do
        assert torch.neuron.memory_stats()["num_ooms"] == 0
        """,
        **LIMIT,
    )


def test_in_the_middle_of_a_model(fresh_python: FreshPython) -> None:
    """The error surfaces from the operator; nothing leaks, and a smaller batch runs afterwards."""
    fresh_python(
        """
        import gc, torch, libtorch_neuronx_lite
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to("neuron")
        before = torch.neuron.memory_allocated()
        with torch.no_grad():
            try:
                model(torch.zeros(12000, 512).to("neuron"))
            except torch.OutOfMemoryError as error:
                message = str(error)
                error.__traceback__ = None
            else:
                raise AssertionError("64 MB were enough for activations of 24 MB each")
            assert "out of memory" in message, message
            gc.collect()
            assert torch.neuron.memory_allocated() == before
            assert model(torch.zeros(10, 512).to("neuron")).shape == (10, 512)
        """,
        **LIMIT,
    )


def test_an_absurd_size(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        for size in (1 << 40, (1 << 62)):
            try:
                torch.empty(size, dtype=torch.uint8, device="neuron")
            except torch.OutOfMemoryError as error:
                assert str(size) in str(error), error
            else:
                raise AssertionError(size)
        """,
        **LIMIT,
    )


def test_a_resize_that_does_not_fit_changes_nothing(fresh_python: FreshPython) -> None:
    """A tensor that got its new shape without the memory for it would reach into its neighbours."""
    out = fresh_python(
        """
        import torch, libtorch_neuronx_lite
        tensor = torch.arange(8.0, device="neuron:0")
        small = torch.ones(2, device="neuron:0")
        def refused(call):
            try:
                call()
            except torch.OutOfMemoryError:
                return True
            return False
        print(refused(lambda: tensor.resize_(1 << 30)), refused(lambda: tensor.resize_(1 << 15, 1 << 15)))
        print(refused(lambda: tensor.set_(small.untyped_storage(), 1, (1 << 30,), (1,))))
        print(refused(lambda: tensor.untyped_storage().resize_(1 << 32)))
        print(refused(lambda: torch.add(torch.ones((), device="neuron:0").expand(1 << 26), 1, out=tensor)))
        print(tuple(tensor.shape), tensor.stride(), tensor.tolist(), tensor.untyped_storage().nbytes())
        print(tuple(small.shape), small.tolist(), small.untyped_storage().nbytes())
        """,
        NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB="64",
        NEURON_LIBTORCH_EAGER_FALLBACK="allow",
    )
    assert out.splitlines() == [
        "True True",
        "True",
        "True",
        "True",
        "(8,) (1,) [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] 32",
        "(2,) [1.0, 1.0] 8",
    ]
