# SPDX-License-Identifier: Apache-2.0
"""Short floats against PyTorch's conversions; window arithmetic against NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from libtorch_neuronx_lite.hostcc.dtypes import STORAGE, from_numeric, to_numeric
from libtorch_neuronx_lite.hostcc.windows import Storage, Window, common_factors, dense, group_factors

SHORT = {"bf16": torch.bfloat16, "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "f16": torch.float16}


@pytest.mark.parametrize("dtype", SHORT)
@given(values=hnp.arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=False)))
def test_rounding_is_pytorchs(dtype: str, values: np.ndarray) -> None:  # type: ignore[type-arg]
    expected = torch.from_numpy(values.copy()).to(SHORT[dtype]).float().numpy()
    np.testing.assert_array_equal(to_numeric(from_numeric(values, dtype), dtype), expected)


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "f8e5m2"])
def test_every_short_float_is_itself(dtype: str) -> None:
    bits = np.arange(1 << (8 * STORAGE[dtype].itemsize)).astype(STORAGE[dtype])
    numbers = to_numeric(bits, dtype)
    expected = torch.from_numpy(bits.view(np.int16 if dtype == "bf16" else np.uint8)).view(SHORT[dtype]).float().numpy()
    np.testing.assert_array_equal(numbers, expected)
    finite = ~np.isnan(numbers)
    np.testing.assert_array_equal(from_numeric(numbers, dtype)[finite], bits[finite])


def test_doubles_round_to_bf16_once() -> None:
    # Just above the middle of two bf16 values, by less than float32 shows: through float32 it would be a tie, to even.
    value = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, -(1 + 2**-8 + 2**-40)])
    assert to_numeric(from_numeric(value, "bf16"), "bf16").tolist() == [1 + 2**-7, 1, -(1 + 2**-7)]


def _array(window: Window, memory: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    strides = [stride * 4 for stride in window.strides]
    return np.lib.stride_tricks.as_strided(memory[window.offset :], window.shape, strides)


@given(st.data())
def test_windows_follow_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    memory = np.arange(math.prod(shape), dtype=np.float32)
    window, array = dense(Storage("arena", memory.nbytes), "f32", shape), memory.reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["transpose", "slice", "broadcast", "reshape"]))
        rank = len(window.shape)
        if kind == "transpose":
            order = data.draw(st.permutations(range(rank)))
            window, array = window.transpose(list(order)), array.transpose(order)
        elif kind == "slice":
            starts = [data.draw(st.integers(0, n - 1)) for n in window.shape]
            limits = [data.draw(st.integers(s + 1, n)) for s, n in zip(starts, window.shape, strict=True)]
            steps = [data.draw(st.integers(1, 3)) for _ in starts]
            window = window.slice(starts, limits, steps)
            array = array[tuple(slice(*part) for part in zip(starts, limits, steps, strict=True))]
        elif kind == "broadcast" and rank < 5:
            made = (2, *window.shape)
            window, array = window.broadcast(made, list(range(1, rank + 1))), np.broadcast_to(array, made)
        elif kind == "reshape":
            made = [*data.draw(st.permutations(window.shape)), 1]
            view = window.reshape(tuple(made))
            if view is not None:
                window, array = view, array.reshape(made)
        np.testing.assert_array_equal(_array(window, memory), array)
        addresses = _array(window, np.arange(memory.size, dtype=np.float32))
        assert window.is_injective <= (np.unique(addresses).size == addresses.size)
        assert not window.is_dense or np.array_equal(addresses.ravel(), window.offset + np.arange(addresses.size))


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_common_factors_cut_both_shapes(shape: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(shape))
    factors = common_factors(tuple(shape), tuple(other))
    if factors is None:
        assert shape != other
        return
    for sizes in (shape, other):
        groups = group_factors(tuple(sizes), factors)
        assert [math.prod(group) for group in groups] == sizes
        assert [f for group in groups for f in group if f != 1] == factors
