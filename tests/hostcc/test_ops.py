# SPDX-License-Identifier: Apache-2.0
"""Every StableHLO op that the host target lowers, by name, against the interpreter in torch-mlir's wheel."""

# ruff: noqa: E501 - lines of MLIR are not wrapped

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_program_oracle import HostProgram
from stablehlo_reference import check, main, sample, tensor

from libtorch_neuronx_lite.hostcc.compiler import compile_module
from libtorch_neuronx_lite.hostcc.lowering import HANDLERS

FLOAT_UNARY = [
    "abs", "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one", "logistic",
    "negate", "round_nearest_afz", "round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh",
]  # fmt: skip
INTEGER_UNARY = ["abs", "negate", "not", "popcnt", "count_leading_zeros", "sign"]
FLOAT_BINARY = ["add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "atan2"]
INTEGER_BINARY = [
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor", "shift_left",
    "shift_right_arithmetic", "shift_right_logical",
]  # fmt: skip
SHAPE = (3, 5)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_unary(name: str, dtype: str) -> None:
    type_ = tensor(SHAPE, dtype)
    low = 0.1 if name in ("log", "sqrt", "rsqrt", "log_plus_one", "cbrt") else -4
    values = sample(SHAPE, dtype, np.random.default_rng(1), low)
    program = check(
        main([(SHAPE, dtype)], [type_], f"%r = stablehlo.{name} %a0 : {type_}", "%r"), [(SHAPE, dtype)], [values]
    )
    assert program.ops() == [name]


@pytest.mark.parametrize("dtype", ["i32", "i64", "i8"])
@pytest.mark.parametrize("name", INTEGER_UNARY)
def test_integer_unary(name: str, dtype: str) -> None:
    type_ = tensor(SHAPE, dtype)
    check(main([(SHAPE, dtype)], [type_], f"%r = stablehlo.{name} %a0 : {type_}", "%r"), [(SHAPE, dtype)])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_binary(name: str, dtype: str) -> None:
    type_, types = tensor(SHAPE, dtype), [(SHAPE, dtype)] * 2
    rng = np.random.default_rng(2)
    inputs = [sample(SHAPE, dtype, rng, 0.2), sample(SHAPE, dtype, rng)]
    check(main(types, [type_], f"%r = stablehlo.{name} %a0, %a1 : {type_}", "%r"), types, inputs)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
@pytest.mark.parametrize("name", INTEGER_BINARY)
def test_integer_binary(name: str, dtype: str) -> None:
    type_, types = tensor(SHAPE, dtype), [(SHAPE, dtype)] * 2
    rng = np.random.default_rng(3)
    inputs = [sample(SHAPE, dtype, rng), sample(SHAPE, dtype, rng, 1)]
    check(main(types, [type_], f"%r = stablehlo.{name} %a0, %a1 : {type_}", "%r"), types, inputs)


@pytest.mark.parametrize("name", ["and", "or", "xor", "not"])
def test_boolean(name: str) -> None:
    type_, count = tensor(SHAPE, "bool"), 1 if name == "not" else 2
    operands = ", ".join(f"%a{i}" for i in range(count))
    types = [(SHAPE, "bool")] * count
    check(main(types, [type_], f"%r = stablehlo.{name} {operands} : {type_}", "%r"), types)


@pytest.mark.parametrize("direction", ["EQ", "NE", "GE", "GT", "LE", "LT"])
@pytest.mark.parametrize(
    ("dtype", "kind"), [("f32", "FLOAT"), ("i32", "SIGNED"), ("u8", "UNSIGNED"), ("bool", "UNSIGNED")]
)
def test_compare(direction: str, dtype: str, kind: str) -> None:
    type_, result, types = tensor(SHAPE, dtype), tensor(SHAPE, "bool"), [(SHAPE, dtype)] * 2
    rng = np.random.default_rng(4)
    inputs = [sample(SHAPE, dtype, rng, 0, 3), sample(SHAPE, dtype, rng, 0, 3)]
    body = f"%r = stablehlo.compare {direction}, %a0, %a1, {kind} : ({type_}, {type_}) -> {result}"
    check(main(types, [result], body, "%r"), types, inputs)


@pytest.mark.parametrize("target", ["f32", "bf16", "f16", "i32", "i64", "u8", "bool", "f64"])
@pytest.mark.parametrize("source", ["f32", "bf16", "i64", "bool", "u8"])
def test_convert(source: str, target: str) -> None:
    argument, result = tensor(SHAPE, source), tensor(SHAPE, target)
    values = sample(SHAPE, source, np.random.default_rng(5), 0, 100)
    body = f"%r = stablehlo.convert %a0 : ({argument}) -> {result}"
    check(main([(SHAPE, source)], [result], body, "%r"), [(SHAPE, source)], [values])


def test_is_finite() -> None:
    values = np.array([0, np.inf, -np.inf, np.nan, 1], np.float32)
    body = "%r = stablehlo.is_finite %a0 : (tensor<5xf32>) -> tensor<5xi1>"
    check(main([((5,), "f32")], ["tensor<5xi1>"], body, "%r"), [((5,), "f32")], [values])


@pytest.mark.parametrize("scalar", [True, False])
def test_select(scalar: bool) -> None:
    predicate = () if scalar else SHAPE
    types = [(predicate, "bool"), (SHAPE, "f32"), (SHAPE, "f32")]
    body = f"%r = stablehlo.select %a0, %a1, %a2 : {tensor(predicate, 'bool')}, {tensor(SHAPE, 'f32')}"
    check(main(types, [tensor(SHAPE, "f32")], body, "%r"), types)


@pytest.mark.parametrize("scalar", [True, False])
def test_clamp(scalar: bool) -> None:
    bound = () if scalar else SHAPE
    types = [(bound, "f32"), (SHAPE, "f32"), (bound, "f32")]
    signature = f"({tensor(bound, 'f32')}, {tensor(SHAPE, 'f32')}, {tensor(bound, 'f32')}) -> {tensor(SHAPE, 'f32')}"
    rng = np.random.default_rng(6)
    inputs = [sample(bound, "f32", rng, -2, 0), sample(SHAPE, "f32", rng), sample(bound, "f32", rng, 0, 2)]
    check(main(types, [tensor(SHAPE, "f32")], f"%r = stablehlo.clamp %a0, %a1, %a2 : {signature}", "%r"), types, inputs)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("stablehlo.transpose %a0, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>", "tensor<4x2x3xf32>"),
        ("stablehlo.reshape %a0 : (tensor<2x3x4xf32>) -> tensor<6x4xf32>", "tensor<6x4xf32>"),
        (
            "stablehlo.broadcast_in_dim %a0, dims = [1, 2, 3] : (tensor<2x3x4xf32>) -> tensor<5x2x3x4xf32>",
            "tensor<5x2x3x4xf32>",
        ),
        ("stablehlo.slice %a0 [0:2, 1:3, 0:4:3] : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>", "tensor<2x2x2xf32>"),
        ("stablehlo.reverse %a0, dims = [0, 2] : tensor<2x3x4xf32>", "tensor<2x3x4xf32>"),
        ("stablehlo.concatenate %a0, %a0, dim = 1 : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x6x4xf32>",
         "tensor<2x6x4xf32>"),
        ("stablehlo.iota dim = 1 : tensor<2x3x4xf32>", "tensor<2x3x4xf32>"),
        ("stablehlo.bitcast_convert %a0 : (tensor<2x3x4xf32>) -> tensor<2x3x4xi32>", "tensor<2x3x4xi32>"),
        ("stablehlo.bitcast_convert %a0 : (tensor<2x3x4xf32>) -> tensor<2x3x4x2xi16>", "tensor<2x3x4x2xi16>"),
        ("stablehlo.reduce_precision %a0, format = e8m7 : tensor<2x3x4xf32>", "tensor<2x3x4xf32>"),
    ],
)  # fmt: skip
def test_layout(body: str, result: str) -> None:
    types = [((2, 3, 4), "f32")]
    check(main(types, [result], f"%r = {body}", "%r"), types)


def test_views_cost_no_step() -> None:
    body = """
  %t = stablehlo.transpose %a0, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %s = stablehlo.slice %t [1:6:2, 0:4] : (tensor<6x4xf32>) -> tensor<3x4xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1, 2] : (tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %r = stablehlo.negate %b : tensor<2x3x4xf32>"""
    types = [((4, 6), "f32")]
    assert check(main(types, ["tensor<2x3x4xf32>"], body, "%r"), types).ops() == ["negate"]


def test_bitcast_to_wider_elements() -> None:
    body = """%s = stablehlo.slice %a0 [0:3, 1:3] : (tensor<3x4xi16>) -> tensor<3x2xi16>
  %r = stablehlo.bitcast_convert %s : (tensor<3x2xi16>) -> tensor<3xi32>"""
    types = [((3, 4), "i16")]
    check(main(types, ["tensor<3xi32>"], body, "%r"), types)


@pytest.mark.parametrize("low", [-2, 0, 1, 3])
@pytest.mark.parametrize("high", [-1, 0, 2])
@pytest.mark.parametrize("interior", [0, 1, 2])
def test_pad(low: int, high: int, interior: int) -> None:
    size = low + high + 5 + 4 * interior
    result = f"tensor<{size}x4xf32>"
    body = f"""%v = stablehlo.constant dense<9.0> : tensor<f32>
  %r = stablehlo.pad %a0, %v, low = [{low}, 1], high = [{high}, 0], interior = [{interior}, 0]
    : (tensor<5x3xf32>, tensor<f32>) -> {result}"""
    types = [((5, 3), "f32")]
    check(main(types, [result], body, "%r"), types)


def test_complex_parts() -> None:
    body = """%z = stablehlo.complex %a0, %a1 : tensor<4xcomplex<f32>>
  %w = stablehlo.multiply %z, %z : tensor<4xcomplex<f32>>
  %i = stablehlo.imag %w : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  %e = stablehlo.real %w : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  %r = stablehlo.add %i, %e : tensor<4xf32>"""
    types = [((4,), "f32"), ((4,), "f32")]
    check(main(types, ["tensor<4xf32>"], body, "%r"), types)


@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers", "result"),
    [
        ((3, 4), (4, 5), "contracting_dims = [1] x [0]", (3, 5)),
        ((4, 3), (5, 4), "contracting_dims = [0] x [1]", (3, 5)),
        ((2, 3, 4), (2, 4, 5), "batching_dims = [0] x [0], contracting_dims = [2] x [1]", (2, 3, 5)),
        ((3, 2, 4), (4, 5, 2), "batching_dims = [1] x [2], contracting_dims = [2] x [0]", (2, 3, 5)),
        ((3, 4), (5,), "contracting_dims = [] x []", (3, 4, 5)),
        ((2, 3, 4), (3, 4, 2), "contracting_dims = [1, 2] x [0, 1]", (2, 2)),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_dot_general(
    lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: str, result: tuple[int, ...], dtype: str
) -> None:
    types = [(lhs, dtype), (rhs, dtype)]
    out = tensor(result, "f32")  # bf16 operands with an f32 result: no rounding that the two sides could do differently
    body = f"%r = stablehlo.dot_general %a0, %a1, {numbers} : ({tensor(lhs, dtype)}, {tensor(rhs, dtype)}) -> {out}"
    check(main(types, [out], body, "%r"), types)


def test_dot_of_widened_short_floats_reads_the_short_floats() -> None:
    body = """%x = stablehlo.convert %a0 : (tensor<3x4xbf16>) -> tensor<3x4xf32>
  %y = stablehlo.convert %a1 : (tensor<5x4xbf16>) -> tensor<5x4xf32>
  %t = stablehlo.transpose %y, dims = [1, 0] : (tensor<5x4xf32>) -> tensor<4x5xf32>
  %r = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>"""
    types = [((3, 4), "bf16"), ((5, 4), "bf16")]
    assert check(main(types, ["tensor<3x5xf32>"], body, "%r"), types).ops() == ["dot_general"]
    body += "\n  %q = stablehlo.convert %r : (tensor<3x5xf32>) -> tensor<3x5xbf16>"
    assert check(main(types, ["tensor<3x5xbf16>"], body, "%q"), types).ops() == ["dot_general"]


def test_convolution() -> None:
    body = """%r = stablehlo.convolution(%a0, %a1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [2, 1], pad = [[1, 0], [0, 2]], rhs_dilate = [1, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
    : (tensor<2x4x6x5xf32>, tensor<6x2x3x2xf32>) -> tensor<2x6x3x5xf32>"""
    types = [((2, 4, 6, 5), "f32"), ((6, 2, 3, 2), "f32")]
    check(main(types, ["tensor<2x6x3x5xf32>"], body, "%r"), types)


@pytest.mark.parametrize(("kind", "dtype", "init"), [
    ("add", "f32", "0.0"), ("add", "i64", "3"), ("multiply", "f32", "1.0"), ("maximum", "f32", "0xFF800000"),
    ("minimum", "i32", "2"), ("and", "bool", "true"), ("or", "bool", "false"), ("xor", "i32", "0"),
])  # fmt: skip
@pytest.mark.parametrize("dims", [[0], [1], [0, 2], [0, 1, 2]])
def test_reduce(kind: str, dtype: str, init: str, dims: list[int]) -> None:
    shape = (2, 3, 4)
    result = tensor(tuple(n for d, n in enumerate(shape) if d not in dims), dtype)
    body = f"""%i = stablehlo.constant dense<{init}> : {tensor((), dtype)}
  %r = stablehlo.reduce(%a0 init: %i) applies stablehlo.{kind} across dimensions = {dims}
    : ({tensor(shape, dtype)}, {tensor((), dtype)}) -> {result}"""
    assert check(main([(shape, dtype)], [result], body, "%r"), [(shape, dtype)]).ops() == ["reduce"]


def test_reduce_of_two_independent_operands() -> None:
    body = """%z = stablehlo.constant dense<0.0> : tensor<f32>
  %r:2 = stablehlo.reduce(%a0 init: %z), (%a1 init: %z) across dimensions = [1]
    : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>)
    reducer(%x: tensor<f32>, %y: tensor<f32>) (%u: tensor<f32>, %v: tensor<f32>) {
      %s = stablehlo.add %x, %y : tensor<f32>
      %m = stablehlo.maximum %u, %v : tensor<f32>
      stablehlo.return %s, %m : tensor<f32>, tensor<f32>
    }"""
    types = [((2, 3), "f32")] * 2
    assert check(main(types, ["tensor<2xf32>"] * 2, body, "%r#0, %r#1"), types).ops() == ["reduce", "reduce"]


@pytest.mark.parametrize(("kind", "direction", "init"), [("max", "GE", "0xFF800000"), ("min", "LE", "0x7F800000")])
@pytest.mark.parametrize("iota", ["op", "broadcast"])
def test_argument_reduction(kind: str, direction: str, init: str, iota: str) -> None:
    made = "%i = stablehlo.iota dim = 1 : tensor<3x7xi64>"
    if iota == "broadcast":
        made = """%l = stablehlo.iota dim = 0 : tensor<7xi64>
  %i = stablehlo.broadcast_in_dim %l, dims = [1] : (tensor<7xi64>) -> tensor<3x7xi64>"""
    body = f"""%v = stablehlo.constant dense<{init}> : tensor<f32>
  %z = stablehlo.constant dense<0> : tensor<i64>
  {made}
  %r:2 = stablehlo.reduce(%a0 init: %v), (%i init: %z) across dimensions = [1]
    : (tensor<3x7xf32>, tensor<3x7xi64>, tensor<f32>, tensor<i64>) -> (tensor<3xf32>, tensor<3xi64>)
    reducer(%x: tensor<f32>, %y: tensor<f32>) (%p: tensor<i64>, %q: tensor<i64>) {{
      %c = stablehlo.compare {direction}, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %s = stablehlo.select %c, %x, %y : tensor<i1>, tensor<f32>
      %e = stablehlo.compare EQ, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %m = stablehlo.minimum %p, %q : tensor<i64>
      %t = stablehlo.select %c, %p, %q : tensor<i1>, tensor<i64>
      %u = stablehlo.select %e, %m, %t : tensor<i1>, tensor<i64>
      stablehlo.return %s, %u : tensor<f32>, tensor<i64>
    }}"""
    values = np.array([[1, 3, 3, 0, -1, -1, 2], [5] * 7, [-3, -2, -1, -4, -4, -1, 0]], np.float32)
    types = [((3, 7), "f32")]
    program = check(main(types, ["tensor<3xf32>", "tensor<3xi64>"], body, "%r#0, %r#1"), types, [values])
    assert program.ops() == ["argreduce"]
    assert program.program["steps"][0]["attrs"] == {"dim": 1, "kind": kind}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "init"), [("add", "0.0"), ("maximum", "0xFF800000"), ("multiply", "1.0")])
def test_cumulative(kind: str, init: str, reverse: bool) -> None:
    padding = "[[0, 0], [0, 4]]" if reverse else "[[0, 0], [4, 0]]"
    body = _window(
        kind, init, f"padding = dense<{padding}> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 5>", SHAPE
    )
    program = check(main([(SHAPE, "f32")], [tensor(SHAPE, "f32")], body, "%r"), [(SHAPE, "f32")])
    assert program.ops() == ["cumulative"]


def test_a_scan_that_starts_from_another_value_is_a_reduce_window() -> None:
    window = "padding = dense<[[0, 0], [4, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 5>"
    body = _window("maximum", "0.5", window, SHAPE)
    program = check(main([(SHAPE, "f32")], [tensor(SHAPE, "f32")], body, "%r"), [(SHAPE, "f32")])
    assert program.ops() == ["reduce_window"]


def _window(kind: str, init: str, attributes: str, result: tuple[int, ...]) -> str:
    return f"""%i = stablehlo.constant dense<{init}> : tensor<f32>
  %r = "stablehlo.reduce_window"(%a0, %i) <{{{attributes}}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.{kind} %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }}) : ({tensor(SHAPE, "f32")}, tensor<f32>) -> {tensor(result, "f32")}"""


def test_reduce_window() -> None:
    attributes = (
        "window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>, window_dilations = array<i64: 1, 2>"
    )
    body = _window("maximum", "0xFF800000", attributes, (2, 2))
    assert check(main([(SHAPE, "f32")], ["tensor<2x2xf32>"], body, "%r"), [(SHAPE, "f32")]).ops() == ["reduce_window"]


@pytest.mark.parametrize("direction", ["GT", "LT"])
def test_sort_of_pairs(direction: str) -> None:
    body = f"""%i = stablehlo.iota dim = 1 : tensor<3x5xi64>
  %r:2 = "stablehlo.sort"(%a0, %i) <{{dimension = 1 : i64, is_stable = true}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i64>, %q: tensor<i64>):
      %c = stablehlo.compare {direction}, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}) : (tensor<3x5xf32>, tensor<3x5xi64>) -> (tensor<3x5xf32>, tensor<3x5xi64>)"""
    values = np.array([[2, 1, 2, 1, 0], [5, 4, 3, 2, 1], [1, 1, 1, 1, 1]], np.float32)
    results = ["tensor<3x5xf32>", "tensor<3x5xi64>"]
    program = check(main([(SHAPE, "f32")], results, body, "%r#0, %r#1"), [(SHAPE, "f32")], [values])
    assert program.ops()[-1] == "sort"


def test_gather_clamps_its_starts() -> None:
    body = """%r = "stablehlo.gather"(%a0, %a1) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 4>}> : (tensor<6x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>"""
    types = [((6, 4), "f32"), ((3,), "i64")]
    rng = np.random.default_rng(7)
    check(main(types, ["tensor<3x4xf32>"], body, "%r"), types, [sample((6, 4), "f32", rng), np.array([2, -5, 99])])


@pytest.mark.parametrize("kind", ["add", "multiply", "maximum", "minimum", "update"])
def test_scatter(kind: str) -> None:
    combine = "" if kind == "update" else f"%s = stablehlo.{kind} %x, %y : tensor<f32>"
    body = f"""%r = "stablehlo.scatter"(%a0, %a1, %a2) <{{scatter_dimension_numbers =
    #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      {combine}
      stablehlo.return {"%y" if kind == "update" else "%s"} : tensor<f32>
  }}) : (tensor<6x4xf32>, tensor<3xi64>, tensor<3x4xf32>) -> tensor<6x4xf32>"""
    types = [((6, 4), "f32"), ((3,), "i64"), ((3, 4), "f32")]
    rng = np.random.default_rng(8)
    inputs = [sample((6, 4), "f32", rng), np.array([1, 9, -1]), sample((3, 4), "f32", rng)]
    program = check(main(types, ["tensor<6x4xf32>"], body, "%r"), types, inputs)
    assert program.ops() == ["copy", "scatter"]  # the input is not ours to write


@pytest.mark.parametrize("start", [-4, 0, 2, 9])
@pytest.mark.parametrize("known", [True, False])
def test_dynamic_slices(start: int, known: bool) -> None:
    at = (
        f"%s = stablehlo.constant dense<{start}> : tensor<i32>"
        if known
        else "%s = stablehlo.add %a2, %a2 : tensor<i32>"
    )
    body = f"""{at}
  %z = stablehlo.constant dense<1> : tensor<i32>
  %e = stablehlo.negate %a0 : tensor<6x4xf32>
  %u = stablehlo.dynamic_update_slice %e, %a1, %s, %z : (tensor<6x4xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<6x4xf32>
  %r = stablehlo.dynamic_slice %u, %z, %s, sizes = [4, 2] : (tensor<6x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>"""
    types = [((6, 4), "f32"), ((2, 3), "f32"), ((), "i32")]
    rng = np.random.default_rng(9)
    inputs = [sample((6, 4), "f32", rng), sample((2, 3), "f32", rng), np.array(start, np.int32)]
    program = check(main(types, ["tensor<4x2xf32>", "tensor<6x4xf32>"], body, "%r, %u"), types, inputs)
    assert "negate" in program.ops()
    assert (not known) == ("dynamic_update_slice" in program.ops())


def test_outputs_that_are_inputs_constants_and_each_other() -> None:
    body = """%c = stablehlo.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %s = stablehlo.constant dense<7> : tensor<3xi64>
  %n = stablehlo.negate %a0 : tensor<2x3xf32>
  %t = stablehlo.transpose %n, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %f = stablehlo.reshape %n : (tensor<2x3xf32>) -> tensor<6xf32>"""
    results = [
        "tensor<2x3xf32>",
        "tensor<1x2xf32>",
        "tensor<3xi64>",
        "tensor<2x3xf32>",
        "tensor<2x3xf32>",
        "tensor<3x2xf32>",
        "tensor<6xf32>",
    ]
    types = [((2, 3), "f32")]
    check(main(types, results, body, "%a0, %c, %s, %n, %n, %t, %f"), types)


def test_empty_tensors() -> None:
    body = """%n = stablehlo.negate %a0 : tensor<0x3xf32>
  %z = stablehlo.constant dense<0.5> : tensor<f32>
  %s = stablehlo.reduce(%n init: %z) applies stablehlo.add across dimensions = [0] : (tensor<0x3xf32>, tensor<f32>) -> tensor<3xf32>
  %c = stablehlo.concatenate %n, %a1, dim = 0 : (tensor<0x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>"""
    types = [((0, 3), "f32"), ((2, 3), "f32")]
    check(
        main(types, ["tensor<0x3xf32>", "tensor<3xf32>", "tensor<2x3xf32>"], body, "%n, %s, %c"), types, native=False
    )  # a graph call takes no empty tensor


def test_private_functions_are_inlined() -> None:
    module = """func.func @main(%a0: tensor<2xf32>) -> tensor<2xf32> {
  %r = func.call @twice(%a0) : (tensor<2xf32>) -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %r = stablehlo.add %x, %x : tensor<2xf32>
  return %r : tensor<2xf32>
}"""
    assert check(module, [((2,), "f32")]).ops() == ["add"]


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "f8e5m2", "f16", "i8", "bool", "c64", "f64"])
@pytest.mark.parametrize("form", ["few", "many", "splat"])
def test_constants_of_every_type(dtype: str, form: str) -> None:
    count = {"few": 4, "many": 300, "splat": 5}[form]
    values = sample((count,), dtype, np.random.default_rng(10))
    if form == "splat":
        values[:] = values[0]
    text = np.ascontiguousarray(values).tobytes().hex()
    if form == "splat":
        text = values[:1].tobytes().hex()
    booleans = "[" + ", ".join(str(bool(value)).lower() for value in values) + "]"
    elements = booleans if dtype == "bool" else f'"0x{text}"'
    body = f"%r = stablehlo.constant dense<{elements}> : {tensor((count,), dtype)}"
    module = main([], [tensor((count,), dtype)], body, "%r")
    (got,) = HostProgram(compile_module(module.encode(), "constants", "test")[0]).run([])
    np.testing.assert_array_equal(got.view(np.uint8), values.view(np.uint8))  # the same bits


def test_every_handler_is_exercised_by_name() -> None:
    text = Path(__file__).read_text()
    lowered = {name for name in HANDLERS if name.startswith("stablehlo.") and not name.startswith("stablehlo.dynamic_")}
    named = set(FLOAT_UNARY + INTEGER_UNARY + FLOAT_BINARY + INTEGER_BINARY)
    missing = {name for name in lowered if name not in text and name.partition(".")[2] not in named}
    # The interpreter has no fft, no rng_bit_generator and no collectives, which tests/collectives runs; the others never
    # reach lowering (simplify removes them).
    assert missing <= {
        "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all", "stablehlo.collective_broadcast",
        "stablehlo.reduce_scatter", "stablehlo.fft", "stablehlo.rng_bit_generator", "stablehlo.optimization_barrier",
        "stablehlo.get_dimension_size", "stablehlo.real_dynamic_slice",
    }  # fmt: skip
