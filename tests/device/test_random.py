# SPDX-License-Identifier: Apache-2.0
"""Random numbers: eager values are the CPU's for the same seed, states save and restore, compiled graphs draw apart."""

from __future__ import annotations

import pytest
import torch

from fresh_process import FreshPython
from libtorch_neuronx_lite import _C


def test_eager_values_are_the_cpus() -> None:
    for draw in (
        lambda device: torch.randn(7, device=device),
        lambda device: torch.rand(3, 3, device=device),
        lambda device: torch.randint(0, 100, (9,), device=device),
        lambda device: torch.randperm(8, device=device),
        lambda device: torch.empty(4, device=device).uniform_(2, 3),
        lambda device: torch.bernoulli(torch.full((20,), 0.5, device=device)),
        lambda device: torch.nn.functional.dropout(torch.ones(30, device=device), 0.3),
        lambda device: torch.multinomial(torch.ones(5, device=device), 3),
    ):
        torch.manual_seed(11)
        cpu = draw("cpu")
        torch.manual_seed(11)
        neuron = draw("neuron")
        assert neuron.device.type == "neuron"
        assert torch.equal(neuron.cpu(), cpu)


def test_devices_have_generators_of_their_own_with_one_seed() -> None:
    torch.manual_seed(3)
    first = torch.randn(4, device="neuron:0")
    assert torch.equal(torch.randn(4, device="neuron:1").cpu(), first.cpu())
    assert not torch.equal(torch.randn(4, device="neuron:0").cpu(), first.cpu())
    torch.neuron.manual_seed(3, "neuron:1")
    assert torch.equal(torch.randn(4, device="neuron:1").cpu(), first.cpu())
    assert torch.neuron.initial_seed() == 3
    assert [g.initial_seed() for g in torch.neuron.default_generators] == [3, 3]


def test_a_negative_seed_is_the_cpus() -> None:
    torch.manual_seed(-5)
    cpu = torch.randn(3)
    torch.manual_seed(-5)
    assert torch.equal(torch.randn(3, device="neuron").cpu(), cpu)


def test_states() -> None:
    state = torch.neuron.get_rng_state()
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    first = torch.randn(5, device="neuron")
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.randn(5, device="neuron").cpu(), first.cpu())
    everything = torch.neuron.get_rng_state_all()
    assert len(everything) == 2
    torch.neuron.set_rng_state_all(everything)
    with pytest.raises(ValueError, match=r"a neuron generator's state has \d+ bytes, got"):
        torch.neuron.set_rng_state(torch.get_rng_state())


def test_fork_rng_restores() -> None:
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        inside = torch.randn(3, device="neuron")
    assert torch.equal(torch.randn(3, device="neuron").cpu(), inside.cpu())


def test_own_generators() -> None:
    generator = torch.Generator("neuron:1")
    assert generator.device == torch.device("neuron:1")
    generator.manual_seed(42)
    values = torch.randn(4, device="neuron:1", generator=generator)
    cpu = torch.randn(4, generator=torch.Generator().manual_seed(42))
    assert torch.equal(values.cpu(), cpu)
    copy = generator.clone_state()
    assert torch.equal(
        torch.randn(4, device="neuron:1", generator=generator).cpu(),
        torch.randn(4, device="neuron:1", generator=copy).cpu(),
    )
    assert generator.seed() == generator.initial_seed()
    assert torch.neuron.seed() == torch.neuron.initial_seed()
    assert torch.neuron.seed_all() == torch.neuron.initial_seed("neuron:1")


def test_compiled_graphs_reserve_numbers_of_their_own() -> None:
    torch.manual_seed(8)
    assert _C.reserve_philox(0, 10) == (8, 0)
    assert _C.reserve_philox(0, 4) == (8, 12)
    state = torch.neuron.get_rng_state()
    assert _C.reserve_philox(0, 1) == (8, 16)
    torch.neuron.set_rng_state(state)
    assert _C.reserve_philox(0, 1) == (8, 16)
    generator = torch.neuron.default_generators[0]
    assert generator.get_offset() == 20
    generator.set_offset(0)
    assert _C.reserve_philox(0, 1) == (8, 0)
    torch.manual_seed(8)
    eager = torch.randn(2, device="neuron")
    torch.manual_seed(8)
    _C.reserve_philox(0, 100)
    assert torch.equal(torch.randn(2, device="neuron").cpu(), eager.cpu())


def test_seeding_starts_no_runtime(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        torch.manual_seed(7)
        cpu = torch.randn(3)
        assert not torch.neuron.is_initialized()
        assert torch.equal(torch.randn(3, device="neuron").cpu(), cpu)
        assert torch.neuron.is_initialized()
        """,
        NEURON_LIBTORCH_EAGER_FALLBACK="allow",
    )


def test_activation_checkpointing_repeats_the_dropout() -> None:
    weight = torch.ones(64, device="neuron", requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(lambda w: torch.nn.functional.dropout(w, 0.5), weight, use_reentrant=False)
    out.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad.cpu(), out.detach().cpu())
