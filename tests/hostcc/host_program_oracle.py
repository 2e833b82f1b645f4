# SPDX-License-Identifier: Apache-2.0
"""A reading of docs/host-program.md in NumPy: slow, plain, and independent of the C++ executor.

It also polices what the compiler promises: windows inside their buffers, no write to a constant or a plain input, no
shared memory between a step's operands beyond what its row allows.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from typing import Any

import numpy as np
from row_oracle import attention, fused

from libtorch_neuronx_lite.hostcc.dtypes import STORAGE, from_numeric, to_numeric
from libtorch_neuronx_lite.hostcc.planner import ELEMENTWISE

Array = np.ndarray[Any, Any]

_UNARY = {
    "abs": np.abs,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "negate": np.negative,
    "not": np.invert,
    "round_nearest_afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "round_nearest_even": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "popcnt": lambda x: _bits(x).sum(-1),
    "count_leading_zeros": lambda x: np.where(x == 0, x.dtype.itemsize * 8, np.argmax(_bits(x), -1)),
}
_COMBINE = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater, "LE": np.less_equal, "LT": np.less
}  # fmt: skip


def _bits(x: Array) -> Array:
    """Bits of integers, the most significant first, along a new last dimension."""
    width = x.dtype.itemsize * 8
    unsigned = x.astype(np.uint64) & np.uint64((1 << width) - 1)
    return (unsigned[..., None] >> np.arange(width - 1, -1, -1, dtype=np.uint64)) & np.uint64(1)


def _binary(name: str, a: Array, b: Array) -> Array:
    integer = a.dtype.kind in "iu"
    if name in _COMBINE:
        if a.dtype == np.bool_:
            return {"add": np.logical_or, "multiply": np.logical_and}.get(name, _COMBINE[name])(a, b)
        return _COMBINE[name](a, b)
    if name == "subtract":
        return a - b
    if name == "divide":
        if not integer:
            return a / b
        return np.array(
            [-1 if y == 0 else int(abs(int(x)) // abs(int(y))) * (1 if (x < 0) == (y < 0) else -1)
             for x, y in zip(a.ravel(), b.ravel(), strict=True)], dtype=object
        ).reshape(a.shape)  # fmt: skip
    if name == "remainder":
        return np.fmod(a, b) if not integer else np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))
    if name == "power":
        return np.power(a, b)
    if name == "atan2":
        return np.arctan2(a, b)
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width) if a.dtype.kind == "i" else b < width
    shift = np.where(inside, b, 0).astype(a.dtype)
    if name == "shift_left":
        return np.where(inside, np.left_shift(a, shift), 0)
    if name == "shift_right_arithmetic":
        signed = a.view(np.dtype(f"i{a.dtype.itemsize}"))
        return np.where(inside, signed >> shift.view(signed.dtype), np.where(signed < 0, -1, 0)).astype(signed.dtype)
    if name == "shift_right_logical":
        unsigned = a.view(np.dtype(f"u{a.dtype.itemsize}"))
        return np.where(inside, unsigned >> shift.view(unsigned.dtype), 0)
    raise KeyError(name)


class HostProgram:
    """A host NEFF, opened: `run` executes it on arrays in storage form."""

    def __init__(self, neff: bytes) -> None:
        archive = tarfile.open(fileobj=io.BytesIO(neff[1024:]))  # noqa: SIM115 - lives on bytes
        self.files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        self.signature = json.loads(self.files["sg00/def.json"])["var"]
        self.program = json.loads(self.files["sg00/program.json"])
        self.constants = self.files["sg00/constants.bin"]

    def ops(self) -> list[str]:
        """The names of the steps, in order."""
        return [step["op"] for step in self.program["steps"]]

    def copied_bytes(self) -> int:
        """The bytes that `copy` steps move."""
        values = self.program["values"]
        return sum(
            int(np.prod(values[step["out"][0]]["shape"])) * STORAGE[values[step["out"][0]]["dtype"]].itemsize
            for step in self.program["steps"]
            if step["op"] == "copy"
        )

    def run(self, inputs: list[Array]) -> list[Array]:
        """Execute; the arrays of aliased inputs are changed in place when they are dense."""
        entries = [v for v in self.signature.values() if v["type"] == "input"]
        memory = [np.frombuffer(bytearray(np.ascontiguousarray(a).tobytes()), np.uint8) for a in inputs]
        assert [m.nbytes for m in memory] == [entry["size"] for entry in entries]
        outputs: list[Array] = []
        aliased: set[int] = set()
        for entry in (v for v in self.signature.values() if v["type"] == "output"):
            if "alias" in entry:
                position = int(entry["alias"].removeprefix("input"))
                aliased.add(position)
                outputs.append(memory[position])
            else:
                outputs.append(np.full(entry["size"], 0xA5, np.uint8))
        arena = np.full(self.program["arena_bytes"], 0x5A, np.uint8)
        constants = np.frombuffer(self.constants, np.uint8)
        buffers = []
        for buffer in self.program["buffers"]:
            kind = buffer["kind"]
            if kind in ("input", "output"):
                data = (memory if kind == "input" else outputs)[buffer["index"]]
                writable = kind == "output" or buffer["index"] in aliased
                assert data.nbytes == buffer["bytes"]
            else:
                pool = arena if kind == "arena" else constants
                assert buffer["offset"] % 64 == 0
                assert buffer["offset"] + buffer["bytes"] <= pool.nbytes
                data = pool[buffer["offset"] : buffer["offset"] + buffer["bytes"]]
                writable = kind == "arena"
            buffers.append((data, writable))
        for step in self.program["steps"]:
            self._step(step, buffers)
        shapes = [(v["shape"], v["dtype"]) for v in self.signature.values() if v["type"] == "output"]
        return [
            output.view(STORAGE[dtype]).reshape(shape) for output, (shape, dtype) in zip(outputs, shapes, strict=True)
        ]

    def _window(self, index: int, buffers: list[tuple[Array, bool]], *, write: bool) -> Array:
        value = self.program["values"][index]
        data, writable = buffers[value["buffer"]]
        assert writable or not write, "a step writes to a constant or to an input that no output aliases"
        item = STORAGE[value["dtype"]].itemsize
        assert min(value["strides"], default=0) >= 0
        assert len(value["strides"]) == len(value["shape"])
        elements = int(np.prod(value["shape"]))
        if elements:
            reach = value["offset"] + sum((n - 1) * s for n, s in zip(value["shape"], value["strides"], strict=True))
            assert (reach + 1) * item <= data.nbytes, "a window leaves its buffer"
        flat = data[value["offset"] * item :].view() if elements else data[:0]
        usable = flat.nbytes // item * item
        view = np.lib.stride_tricks.as_strided(
            flat[:usable].view(STORAGE[value["dtype"]]), value["shape"], [s * item for s in value["strides"]]
        )
        if write and elements:
            addresses = np.zeros(value["shape"], np.int64)
            for dim, (n, s) in enumerate(zip(value["shape"], value["strides"], strict=True)):
                addresses += (np.arange(n) * s).reshape([-1 if d == dim else 1 for d in range(len(value["shape"]))])
            assert np.unique(addresses).size == addresses.size, "a step writes an element twice"
        return view

    def _step(self, step: dict[str, Any], buffers: list[tuple[Array, bool]]) -> None:
        name, attributes, values = step["op"], step["attrs"], self.program["values"]
        ins = [self._window(index, buffers, write=False) for index in step["in"]]
        outs = [self._window(index, buffers, write=True) for index in step["out"]]
        types = [values[index]["dtype"] for index in step["in"]]
        out_types = [values[index]["dtype"] for index in step["out"]]
        for (i, window), output in itertools.product(enumerate(ins), outs):
            if np.shares_memory(window, output):
                same = (window.shape, window.itemsize, window.strides) == (
                    output.shape,
                    output.itemsize,
                    output.strides,
                )
                start = window.__array_interface__["data"][0] == output.__array_interface__["data"][0]
                assert name in ELEMENTWISE, f"{name}: operand {i} shares memory with its output"
                assert same, f"{name}: operand {i} overlaps its output"
                assert start, f"{name}: operand {i} is shifted against its output"
        with np.errstate(all="ignore"):
            results = execute(name, attributes, [w.copy() for w in ins], types, outs, out_types)
        for output, result in zip(outs, results, strict=True):
            output[...] = result


def execute(
    name: str, attributes: dict[str, Any], ins: list[Array], types: list[str], outs: list[Array], out_types: list[str]
) -> list[Array]:
    """Return the results of one step in storage form. `outs` give shapes, and old values where a step updates."""
    numbers = [to_numeric(array, dtype) for array, dtype in zip(ins, types, strict=True)]
    shape, dtype = outs[0].shape, out_types[0]
    if name == "copy":
        assert types == out_types
        return [ins[0].reshape(shape)]
    if name == "convert":
        return [_convert(numbers[0], types[0], dtype)]
    if name == "iota":
        line = np.arange(shape[attributes["dim"]])
        placed = line.reshape([-1 if d == attributes["dim"] else 1 for d in range(len(shape))])
        return [from_numeric(np.broadcast_to(placed, shape).astype(np.float64), dtype)]
    if name in _UNARY:
        return [from_numeric(np.asarray(_UNARY[name](numbers[0])), dtype)]
    if name == "compare":
        left, right = numbers
        if attributes["type"] == "TOTALORDER":
            raise NotImplementedError
        return [_COMPARE[attributes["direction"]](left, right)]
    if name == "select":
        assert ins[0].shape == shape
        return [np.where(ins[0], ins[1], ins[2])]
    if name == "clamp":
        return [from_numeric(np.minimum(np.maximum(numbers[1], numbers[0]), numbers[2]), dtype)]
    if name == "complex":
        return [(numbers[0] + 1j * numbers[1]).astype(STORAGE[dtype])]
    if name == "dot_general":
        return [from_numeric(_dot(numbers[0], numbers[1], attributes), dtype)]
    if name == "attention":
        return [from_numeric(attention(numbers, ins[4] if len(ins) > 4 else None, dtype), dtype)]
    if name == "fused":
        return fused(numbers, attributes, outs, out_types, lambda name, x: np.asarray(_UNARY[name](x)), _binary)
    if name == "convolution":
        return [from_numeric(_convolution(numbers[0], numbers[1], attributes, shape), dtype)]
    if name == "reduce":
        return [from_numeric(_reduce(numbers[0], numbers[1], attributes), dtype)]
    if name == "argreduce":
        pick = np.argmax if attributes["kind"] == "max" else np.argmin
        index = pick(numbers[0], axis=attributes["dim"])
        value = np.take_along_axis(ins[0], np.expand_dims(index, attributes["dim"]), attributes["dim"])
        return [value.reshape(outs[0].shape), index.astype(STORAGE[out_types[1]])]
    if name == "reduce_window":
        return [from_numeric(_reduce_window(numbers[0], numbers[1], attributes, shape), dtype)]
    if name == "cumulative":
        data = np.flip(numbers[0], attributes["dim"]) if attributes["reverse"] else numbers[0]
        scanned = _COMBINE[attributes["kind"]].accumulate(data, axis=attributes["dim"])
        return [from_numeric(np.flip(scanned, attributes["dim"]) if attributes["reverse"] else scanned, dtype)]
    if name == "gather":
        return [_gather(ins[0], ins[1], attributes, shape)]
    if name == "scatter":
        return [_scatter(outs[0].copy(), dtype, ins[0], ins[1], attributes)]
    if name == "dynamic_slice":
        starts = [min(max(int(s), 0), n - m) for s, n, m in zip(ins[1:], ins[0].shape, shape, strict=True)]
        return [ins[0][tuple(slice(a, a + m) for a, m in zip(starts, shape, strict=True))]]
    if name == "dynamic_update_slice":
        target, update = outs[0].copy(), ins[0]
        starts = [min(max(int(s), 0), n - m) for s, n, m in zip(ins[1:], shape, update.shape, strict=True)]
        target[tuple(slice(a, a + m) for a, m in zip(starts, update.shape, strict=True))] = update
        return [target]
    if name == "reverse":
        return [np.flip(ins[0], attributes["dims"])]
    if name == "sort":
        keys = -numbers[0].astype(np.float64) if attributes["descending"] else numbers[0]
        order = np.argsort(keys, axis=attributes["dim"], kind="stable")
        return [np.take_along_axis(array, order, attributes["dim"]) for array in ins]
    if name == "top_k":
        order = np.argsort(-numbers[0].astype(np.float64), axis=-1, kind="stable")[..., : attributes["k"]]
        return [np.take_along_axis(ins[0], order, -1), order.astype(STORAGE[out_types[1]])]
    return [from_numeric(_wrap(_binary(name, numbers[0], numbers[1]), dtype), dtype)]


def _wrap(values: Array, dtype: str) -> Array:
    if values.dtype != object:
        return values
    width = STORAGE[dtype].itemsize * 8
    return np.array([int(v) & ((1 << width) - 1) for v in values.ravel()], np.uint64).reshape(values.shape)


def _convert(numbers: Array, source: str, target: str) -> Array:
    if target == "bool":
        return np.asarray(numbers != 0)
    if STORAGE[target].kind in "iu" and target[0] in "iu" and numbers.dtype.kind == "f":
        return np.trunc(numbers).astype(np.int64).astype(STORAGE[target])
    return from_numeric(numbers, target)


def _dot(lhs: Array, rhs: Array, attributes: dict[str, Any]) -> Array:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [""] * lhs.ndim, [""] * rhs.ndim
    batch = ""
    for a, b in zip(attributes["lhs_batching"], attributes["rhs_batching"], strict=True):
        left[a] = right[b] = next(letters)
        batch += left[a]
    for a, b in zip(attributes["lhs_contracting"], attributes["rhs_contracting"], strict=True):
        left[a] = right[b] = next(letters)
    free = ""
    for names in (left, right):
        for dim, known in enumerate(names):
            if not known:
                names[dim] = next(letters)
                free += names[dim]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{batch}{free}", lhs, rhs)


def _reduce(x: Array, init: Array, attributes: dict[str, Any]) -> Array:
    combine = _COMBINE[attributes["kind"]]
    if x.dtype == np.bool_:
        combine = {"add": np.logical_or, "multiply": np.logical_and}.get(attributes["kind"], combine)
    axes = tuple(attributes["dims"])
    if combine is np.add and x.dtype.kind == "f":
        return x.astype(np.float64).sum(axis=axes) + init
    return np.asarray(combine(combine.reduce(x, axis=axes), init)) if x.size else np.broadcast_to(
        init, tuple(n for d, n in enumerate(x.shape) if d not in axes)
    )  # fmt: skip


def _reduce_window(x: Array, init: Array, attributes: dict[str, Any], shape: tuple[int, ...]) -> Array:
    base = attributes["base_dilations"]
    dilated = np.full([max(0, (n - 1) * b + 1) for n, b in zip(x.shape, base, strict=True)], init, x.dtype)
    dilated[tuple(slice(None, None, b) for b in base)] = x
    padding = attributes["padding"]
    padded = np.full(
        [n + max(low, 0) + max(high, 0) for n, (low, high) in zip(dilated.shape, padding, strict=True)], init, x.dtype
    )
    padded[tuple(slice(max(low, 0), max(low, 0) + n) for n, (low, _) in zip(dilated.shape, padding, strict=True))] = (
        dilated
    )
    padded = padded[
        tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(padded.shape, padding, strict=True))
    ]
    combine = _COMBINE[attributes["kind"]]
    result = np.broadcast_to(init, shape).astype(x.dtype)
    for offset in itertools.product(*(range(n) for n in attributes["window_dimensions"])):
        index = tuple(
            slice(o * d, o * d + (m - 1) * s + 1, s)
            for o, d, m, s in zip(
                offset, attributes["window_dilations"], shape, attributes["window_strides"], strict=True
            )
        )
        result = combine(result, padded[index])
    return np.asarray(result)


def _convolution(x: Array, w: Array, a: dict[str, Any], shape: tuple[int, ...]) -> Array:
    x = np.transpose(x, [a["input_batch"], a["input_feature"], *a["input_spatial"]])
    w = np.transpose(w, [a["kernel_output_feature"], a["kernel_input_feature"], *a["kernel_spatial"]])
    order = [a["output_batch"], a["output_feature"], *a["output_spatial"]]
    rank = x.ndim - 2
    assert a["batch_group_count"] == 1
    groups = a["feature_group_count"]
    result = np.zeros([shape[d] for d in order], np.float64)
    spatial_out = result.shape[2:]
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    for place in itertools.product(*(range(n) for n in spatial_out)):
        for tap in itertools.product(*(range(n) for n in w.shape[2:])):
            at: list[int] = []
            for d in range(rank):
                k = w.shape[2 + d] - 1 - tap[d] if a["window_reversal"][d] else tap[d]
                position = place[d] * a["window_strides"][d] + k * a["rhs_dilation"][d] - a["padding"][d][0]
                if position % a["lhs_dilation"][d] or not 0 <= position // a["lhs_dilation"][d] < x.shape[2 + d]:
                    break
                at.append(position // a["lhs_dilation"][d])
            if len(at) < rank:
                continue
            for g in range(groups):
                patch = x[(slice(None), slice(g * per_in, (g + 1) * per_in), *at)].astype(np.float64)
                kernel = w[(slice(g * per_out, (g + 1) * per_out), slice(None), *tap)].astype(np.float64)
                result[(slice(None), slice(g * per_out, (g + 1) * per_out), *place)] += patch @ kernel.T
    return np.transpose(result, np.argsort(order))


def _index_vectors(indices: Array, index_vector_dim: int) -> Array:
    if index_vector_dim == indices.ndim:
        indices = indices[..., None]
    return np.moveaxis(indices, index_vector_dim, -1)


def _gather(operand: Array, indices: Array, a: dict[str, Any], shape: tuple[int, ...]) -> Array:
    vectors = _index_vectors(indices, a["index_vector_dim"])
    result = np.empty(shape, operand.dtype)
    batch_dims = [d for d in range(len(shape)) if d not in a["offset_dims"]]
    window_dims = [
        d for d in range(operand.ndim) if d not in a["collapsed_slice_dims"] and d not in a["operand_batching_dims"]
    ]
    index_dims = [d for d in range(indices.ndim) if d != a["index_vector_dim"]]
    for place in np.ndindex(*shape):
        batch = tuple(place[d] for d in batch_dims)
        at = [0] * operand.ndim
        for k, d in enumerate(a["start_index_map"]):
            at[d] = min(max(int(vectors[batch][k]), 0), operand.shape[d] - a["slice_sizes"][d])
        for d, i in zip(a["operand_batching_dims"], a["start_indices_batching_dims"], strict=True):
            at[d] = batch[index_dims.index(i)]
        for d, o in zip(window_dims, a["offset_dims"], strict=True):
            at[d] += place[o]
        result[place] = operand[tuple(at)]
    return result


def _scatter(target: Array, dtype: str, indices: Array, updates: Array, a: dict[str, Any]) -> Array:
    vectors = _index_vectors(indices, a["index_vector_dim"])
    scatter_dims = [d for d in range(updates.ndim) if d not in a["update_window_dims"]]
    window_dims = [
        d for d in range(target.ndim) if d not in a["inserted_window_dims"] and d not in a["input_batching_dims"]
    ]
    index_dims = [d for d in range(indices.ndim) if d != a["index_vector_dim"]]
    sizes = {d: updates.shape[u] for d, u in zip(window_dims, a["update_window_dims"], strict=True)}
    for place in np.ndindex(*updates.shape):
        batch = tuple(place[d] for d in scatter_dims)
        start = [0] * target.ndim
        for k, d in enumerate(a["scatter_dims_to_operand_dims"]):
            start[d] = int(vectors[batch][k])
        for d, i in zip(a["input_batching_dims"], a["scatter_indices_batching_dims"], strict=True):
            start[d] = batch[index_dims.index(i)]
        if any(s < 0 or s + sizes.get(d, 1) > target.shape[d] for d, s in enumerate(start)):
            continue
        at = list(start)
        for d, u in zip(window_dims, a["update_window_dims"], strict=True):
            at[d] += place[u]
        old, new = target[tuple(at)], updates[place]
        if a["kind"] != "update":
            old_number, new_number = to_numeric(np.asarray(old), dtype), to_numeric(np.asarray(new), dtype)
            new = from_numeric(np.asarray(_COMBINE[a["kind"]](old_number, new_number)), dtype)[()]
        target[tuple(at)] = new
    return target
