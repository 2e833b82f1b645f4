# SPDX-License-Identifier: Apache-2.0
"""Random graphs of elementwise ops, views, reductions and updates have the interpreter's values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stablehlo_reference import Array, check, tensor

Shape = tuple[int, ...]


class _Builder:
    """Draws a module op by op. Values are small integers held in f32, so that no order of sums can differ."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.values: list[tuple[str, Shape]] = []
        self.arguments: list[Shape] = []

    def fresh(self, shape: Shape, text: str) -> None:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        self.values.append((name, shape))

    def pick(self, shape: Shape | None = None) -> tuple[str, Shape]:
        fitting = [value for value in self.values if shape is None or value[1] == shape]
        return self.draw(st.sampled_from(fitting))

    def add_op(self) -> None:
        kinds = [
            "product",
            "repeat",
            "binary",
            "unary",
            "transpose",
            "slice",
            "reshape",
            "broadcast",
            "concat",
            "reduce",
            "update",
            "pad",
            "scalar",
        ]
        getattr(self, f"_{self.draw(st.sampled_from(kinds))}")()

    def _product(self) -> None:
        """Contract the last dimension of two values; equal leading dimensions may be a batch."""
        left, shape = self.pick()
        fitting = [v for v in self.values if v[1][-1] == shape[-1]]
        right, other = self.draw(st.sampled_from(fitting))
        pairs = zip(shape[:-1], other[:-1], strict=False)
        batch = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        batch = self.draw(st.integers(0, batch))
        made = (*shape[:batch], *shape[batch:-1], *other[batch:-1])
        if math.prod(made) > 512 or len(made) > 5 or not made:
            return
        dims = list(range(batch))
        # Sums of products grow: bring them back to small integers.
        name = f"%v{len(self.lines)}"
        self.lines.append(
            f"  {name} = stablehlo.dot_general {left}, {right}, batching_dims = {dims} x {dims}, "
            f"contracting_dims = [{len(shape) - 1}] x [{len(other) - 1}] : "
            f"({tensor(shape, 'f32')}, {tensor(other, 'f32')}) -> {tensor(made, 'f32')}"
        )
        bound = f"%v{len(self.lines)}"
        self.lines.append(f"  {bound} = stablehlo.constant dense<8.0> : {tensor(made, 'f32')}")
        self.fresh(made, f"stablehlo.remainder {name}, {bound} : {tensor(made, 'f32')}")

    def _repeat(self) -> None:
        """Repeat along a new dimension and merge it, as grouped attention does with its heads."""
        value, shape = self.pick()
        place = self.draw(st.integers(1, len(shape)))
        size = self.draw(st.integers(2, 3))
        wide = (*shape[:place], size, *shape[place:])
        made = (*shape[: place - 1], shape[place - 1] * size, *shape[place:])
        if math.prod(made) > 512:
            return
        dims = [dim for dim in range(len(wide)) if dim != place]
        name = f"%v{len(self.lines)}"
        self.lines.append(
            f"  {name} = stablehlo.broadcast_in_dim {value}, dims = {dims} : "
            f"({tensor(shape, 'f32')}) -> {tensor(wide, 'f32')}"
        )
        self.fresh(made, f"stablehlo.reshape {name} : ({tensor(wide, 'f32')}) -> {tensor(made, 'f32')}")

    def _binary(self) -> None:
        left, shape = self.pick()
        right, _ = self.pick(shape)
        op = self.draw(st.sampled_from(["add", "subtract", "maximum", "minimum"]))
        self.fresh(shape, f"stablehlo.{op} {left}, {right} : {tensor(shape, 'f32')}")

    def _scalar(self) -> None:
        left, shape = self.pick()
        value = self.draw(st.sampled_from([0, 1, 2, -1]))
        constant = f"%v{len(self.lines)}"
        self.lines.append(f"  {constant} = stablehlo.constant dense<{value}.0> : {tensor(shape, 'f32')}")
        op = self.draw(st.sampled_from(["add", "multiply", "divide"] if value in (1, 2) else ["add", "multiply"]))
        self.fresh(shape, f"stablehlo.{op} {left}, {constant} : {tensor(shape, 'f32')}")

    def _unary(self) -> None:
        value, shape = self.pick()
        op = self.draw(st.sampled_from(["negate", "abs", "floor"]))
        self.fresh(shape, f"stablehlo.{op} {value} : {tensor(shape, 'f32')}")

    def _transpose(self) -> None:
        value, shape = self.pick()
        order = self.draw(st.permutations(range(len(shape))))
        result = tuple(shape[dim] for dim in order)
        self.fresh(
            result,
            f"stablehlo.transpose {value}, dims = {list(order)} : ({tensor(shape, 'f32')}) -> {tensor(result, 'f32')}",
        )

    def _slice(self) -> None:
        value, shape = self.pick()
        parts, result = [], []
        for size in shape:
            start = self.draw(st.integers(0, size - 1))
            limit = self.draw(st.integers(start + 1, size))
            step = self.draw(st.integers(1, 2))
            parts.append(f"{start}:{limit}:{step}")
            result.append(-(-(limit - start) // step))
        made = tuple(result)
        self.fresh(
            made, f"stablehlo.slice {value} [{', '.join(parts)}] : ({tensor(shape, 'f32')}) -> {tensor(made, 'f32')}"
        )

    def _reshape(self) -> None:
        value, shape = self.pick()
        left, result = math.prod(shape), []
        while left > 1 and len(result) < 3:
            result.append(self.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
            left //= result[-1]
        made = (*result, left)
        self.fresh(made, f"stablehlo.reshape {value} : ({tensor(shape, 'f32')}) -> {tensor(made, 'f32')}")

    def _broadcast(self) -> None:
        value, shape = self.pick()
        if len(shape) > 3:
            return
        place = self.draw(st.integers(0, len(shape)))
        size = self.draw(st.integers(1, 3))
        made = (*shape[:place], size, *shape[place:])
        dims = [dim for dim in range(len(made)) if dim != place]
        self.fresh(
            made,
            f"stablehlo.broadcast_in_dim {value}, dims = {dims} : ({tensor(shape, 'f32')}) -> {tensor(made, 'f32')}",
        )

    def _concat(self) -> None:
        left, shape = self.pick()
        right, _ = self.pick(shape)
        dim = self.draw(st.integers(0, len(shape) - 1))
        made = (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])
        if math.prod(made) > 512:
            return
        type_ = tensor(shape, "f32")
        self.fresh(
            made, f"stablehlo.concatenate {left}, {right}, dim = {dim} : ({type_}, {type_}) -> {tensor(made, 'f32')}"
        )

    def _reduce(self) -> None:
        value, shape = self.pick()
        if len(shape) < 2:
            return
        dim = self.draw(st.integers(0, len(shape) - 1))
        made = (*shape[:dim], *shape[dim + 1 :])
        zero = f"%v{len(self.lines)}"
        self.lines.append(f"  {zero} = stablehlo.constant dense<0.0> : tensor<f32>")
        kind = self.draw(st.sampled_from(["add", "maximum"]))
        self.fresh(
            made,
            f"stablehlo.reduce({value} init: {zero}) applies stablehlo.{kind} across dimensions = [{dim}] : "
            f"({tensor(shape, 'f32')}, tensor<f32>) -> {tensor(made, 'f32')}",
        )

    def _update(self) -> None:
        target, shape = self.pick()
        fitting = [
            v for v in self.values if len(v[1]) == len(shape) and all(a <= b for a, b in zip(v[1], shape, strict=True))
        ]
        update, small = self.draw(st.sampled_from(fitting))
        starts = ", ".join(["%at"] * len(shape))
        types = ", ".join(["tensor<i32>"] * len(shape))
        self.fresh(
            shape,
            f"stablehlo.dynamic_update_slice {target}, {update}, {starts} : "
            f"({tensor(shape, 'f32')}, {tensor(small, 'f32')}, {types}) -> {tensor(shape, 'f32')}",
        )

    def _pad(self) -> None:
        value, shape = self.pick()
        low = [self.draw(st.integers(-1 if size > 2 else 0, 1)) for size in shape]
        high = [self.draw(st.integers(0, 1)) for _ in shape]
        made = tuple(size + a + b for size, a, b in zip(shape, low, high, strict=True))
        fill = f"%v{len(self.lines)}"
        self.lines.append(f"  {fill} = stablehlo.constant dense<3.0> : tensor<f32>")
        self.fresh(
            made,
            f"stablehlo.pad {value}, {fill}, low = {low}, high = {high}, interior = {[0] * len(shape)} : "
            f"({tensor(shape, 'f32')}, tensor<f32>) -> {tensor(made, 'f32')}",
        )


@st.composite
def modules(draw: st.DrawFn) -> tuple[str, list[tuple[Shape, str]], list[Array]]:
    """Return a module, its argument types and integer-valued arguments; some outputs are an argument's memory."""
    builder = _Builder(draw)
    shapes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3))
    for number, shape in enumerate(shapes):
        builder.values.append((f"%a{number}", shape))
    for _ in range(draw(st.integers(1, 14))):
        builder.add_op()
    outputs = draw(st.lists(st.sampled_from(builder.values), min_size=1, max_size=4))
    aliases: dict[int, int] = {}
    for number, shape in enumerate(shapes):
        free = [k for k, (_, s) in enumerate(outputs) if s == shape and k not in aliases.values()]
        if free and draw(st.booleans()):
            aliases[number] = draw(st.sampled_from(free))
    arguments = ", ".join(
        f"%a{n}: {tensor(shape, 'f32')}" + (f" {{tf.aliasing_output = {aliases[n]} : i32}}" if n in aliases else "")
        for n, shape in enumerate(shapes)
    )
    results = ", ".join(tensor(shape, "f32") for _, shape in outputs)
    names = ", ".join(name for name, _ in outputs)
    body = "\n".join(builder.lines)
    text = f"func.func @main({arguments}, %at: tensor<i32>) -> ({results}) {{\n{body}\n  return {names} : {results}\n}}"
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs: list[Array] = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    types = [(shape, "f32") for shape in shapes] + [((), "i32")]
    return text, types, [*inputs, np.array(draw(st.integers(-1, 3)), np.int32)]


_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@given(modules())
@settings(max_examples=120, **_PATIENT)
def test_any_graph_has_the_interpreters_values(case: tuple[str, list[tuple[Shape, str]], list[Array]]) -> None:
    module, types, inputs = case
    check(module, types, inputs)


@pytest.mark.long
@pytest.mark.timeout(900)
@given(modules())
@settings(max_examples=1000, **_PATIENT)
def test_many_graphs_have_the_interpreters_values(case: tuple[str, list[tuple[Shape, str]], list[Array]]) -> None:
    module, types, inputs = case
    check(module, types, inputs)
