# SPDX-License-Identifier: Apache-2.0
"""The random number generators of the devices.

An eager random operator gives the values that the CPU gives for the same `torch.manual_seed`. A compiled graph draws
from a stream of its own with the same seed: the same seed gives the same values again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .. import _C
from .selection import Device, device_count, device_index

_SEED_BITS = (1 << 64) - 1


def manual_seed(seed: int, device: Device = None) -> None:
    """Seed the generator of one device."""
    _C.default_generator(device_index(device)).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; torch.manual_seed calls it. Does not start the runtime."""
    _C.seed_default_generators(int(seed) & _SEED_BITS)


def seed(device: Device = None) -> int:
    """Seed the generator of one device with a random number, and return it."""
    return _C.default_generator(device_index(device)).seed()


def seed_all() -> int:
    """Seed the generators of all devices with one random number, and return it."""
    value = int(torch.randint(0, (1 << 63) - 1, (), generator=torch.Generator(), dtype=torch.int64).item())
    manual_seed_all(value)
    return value


def initial_seed(device: Device = None) -> int:
    """Return the seed of a device's generator."""
    return _C.default_generator(device_index(device)).initial_seed()


def get_rng_state(device: Device = "neuron") -> torch.Tensor:
    """Return the state of a device's generator, a CPU uint8 tensor for `set_rng_state`."""
    return _C.default_generator(device_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = "neuron") -> None:
    """Set the state of a device's generator to one that `get_rng_state` returned.

    Raises:
        ValueError: the tensor has the wrong size, such as a state of the CPU generator.
    """
    _C.default_generator(device_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of the devices' generators, in the order of the devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
