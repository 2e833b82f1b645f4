# SPDX-License-Identifier: Apache-2.0
"""Eager random operators give CPU eager's values for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Draw = Callable[[str, torch.Generator | None], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "rand": lambda d, g: torch.rand(100, device=d, generator=g),
    "randn": lambda d, g: torch.randn(100, device=d, generator=g),
    "randint": lambda d, g: torch.randint(0, 99, (50,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(50, device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((50,), 0.4, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(20, device=d), 10, generator=g),
    "normal": lambda d, g: torch.normal(0.0, torch.ones(30, device=d), generator=g),
    "exponential": lambda d, g: torch.empty(30, device=d).exponential_(generator=g),
    "uniform": lambda d, g: torch.empty(30, 2, device=d).t().uniform_(generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_default_generator_follows_manual_seed(name: str) -> None:
    torch.manual_seed(5)
    want = [DRAWS[name]("cpu", None) for _ in range(2)]
    torch.manual_seed(5)
    got = [DRAWS[name]("neuron", None) for _ in range(2)]
    assert all(torch.equal(a, b.cpu()) for a, b in zip(want, got, strict=True))
    assert not torch.equal(want[0], want[1])


@pytest.mark.parametrize("name", DRAWS)
def test_an_explicit_generator(name: str) -> None:
    want = DRAWS[name]("cpu", torch.Generator().manual_seed(11))
    for generator in (torch.Generator("neuron").manual_seed(11), torch.Generator().manual_seed(11)):
        assert torch.equal(DRAWS[name]("neuron", generator).cpu(), want)


def test_operators_without_a_generator_argument_draw_from_the_device_too() -> None:
    def draw(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.ones(64, device=device)
        first = torch.rand(4, device=device)
        mask = torch.native_dropout(x, 0.5, True)[1]
        return [first, mask.float(), torch.rand(4, device=device)]

    assert all(torch.equal(a, b.cpu()) for a, b in zip(draw("cpu"), draw("neuron"), strict=True))


def test_the_devices_generator_is_its_own() -> None:
    torch.manual_seed(1)
    want = torch.rand(4)
    torch.manual_seed(1)
    torch.rand(9, device="neuron")
    torch.nn.functional.dropout(torch.ones(9, device="neuron"))
    assert torch.equal(torch.rand(4), want)


def test_a_restored_state_repeats() -> None:
    state = torch.neuron.get_rng_state()
    first = torch.randn(8, device="neuron")
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.randn(8, device="neuron"), first)


def test_a_cpu_tensor_does_not_draw_from_a_neuron_generator() -> None:
    generator = torch.Generator("neuron").manual_seed(11)
    before = generator.get_state()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'neuron:0'"):
        torch.randn(3, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'neuron:0'"):
        torch.empty(3).uniform_(generator=generator)
    assert torch.equal(generator.get_state(), before)
