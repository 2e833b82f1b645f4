# SPDX-License-Identifier: Apache-2.0
"""Outputs that are an input's memory: zero copies where the old value is not needed, right values where it is."""

# ruff: noqa: E501 - lines of MLIR are not wrapped

from __future__ import annotations

import numpy as np
import pytest
from stablehlo_reference import Array, check, sample

from libtorch_neuronx_lite.hostcc.compiler import compile_module
from libtorch_neuronx_lite.worker import JobError

CACHE = ((1, 2, 8, 4), "f32")
NEW = ((1, 2, 3, 4), "f32")
POSITIONS = ((3,), "i64")


def scatter_rows(result: str, cache: str, positions: str, new: str) -> str:
    """Text of cache[:, :, positions] = new in the form torch-mlir gives it: an index for every element."""
    return f"""
  {result}_i0 = stablehlo.iota dim = 0 : tensor<1x2x3x4x1xi64>
  {result}_i1 = stablehlo.iota dim = 1 : tensor<1x2x3x4x1xi64>
  {result}_i2 = stablehlo.broadcast_in_dim {positions}, dims = [2] : (tensor<3xi64>) -> tensor<1x2x3x4x1xi64>
  {result}_i3 = stablehlo.iota dim = 3 : tensor<1x2x3x4x1xi64>
  {result}_at = stablehlo.concatenate {result}_i0, {result}_i1, {result}_i2, {result}_i3, dim = 4 :
    (tensor<1x2x3x4x1xi64>, tensor<1x2x3x4x1xi64>, tensor<1x2x3x4x1xi64>, tensor<1x2x3x4x1xi64>) -> tensor<1x2x3x4x4xi64>
  {result} = "stablehlo.scatter"({cache}, {result}_at, {new}) <{{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1, 2, 3],
      scatter_dims_to_operand_dims = [0, 1, 2, 3], index_vector_dim = 4>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      stablehlo.return %y : tensor<f32>
  }}) : (tensor<1x2x8x4xf32>, tensor<1x2x3x4x4xi64>, tensor<1x2x3x4xf32>) -> tensor<1x2x8x4xf32>"""


def _inputs(rng: np.random.Generator) -> list[Array]:
    return [sample(*CACHE, rng), sample(*NEW, rng), np.array([6, 1, 4])]


def test_an_updated_cache_is_written_in_place_and_read_as_the_new_value() -> None:
    module = f"""func.func @main(%cache: tensor<1x2x8x4xf32> {{tf.aliasing_output = 1 : i32}}, %new: tensor<1x2x3x4xf32>,
      %at: tensor<3xi64>) -> (tensor<1x2x8x3xf32>, tensor<1x2x8x4xf32>) {{
  {scatter_rows("%k", "%cache", "%at", "%new")}
  %s = stablehlo.dot_general %k, %new, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3]
    : (tensor<1x2x8x4xf32>, tensor<1x2x3x4xf32>) -> tensor<1x2x8x3xf32>
  return %s, %k : tensor<1x2x8x3xf32>, tensor<1x2x8x4xf32>
}}"""
    program = check(module, [CACHE, NEW, POSITIONS], _inputs(np.random.default_rng(1)))
    assert program.ops() == ["scatter", "dot_general"]
    scatter = program.program["steps"][0]["attrs"]
    assert scatter["scatter_dims_to_operand_dims"] == [2]
    assert scatter["update_window_dims"] == [1, 2, 3]
    assert program.program["arena_bytes"] == 0


def test_thirty_layers_of_two_caches_copy_nothing() -> None:
    layers = range(60)
    arguments = ", ".join(f"%c{i}: tensor<1x2x8x4xf32> {{tf.aliasing_output = {i} : i32}}" for i in layers)
    body = "".join(scatter_rows(f"%k{i}", f"%c{i}", "%at", "%new") for i in layers)
    types = ", ".join(["tensor<1x2x8x4xf32>"] * len(layers))
    module = f"""func.func @main({arguments}, %new: tensor<1x2x3x4xf32>, %at: tensor<3xi64>) -> ({types}, tensor<1x2x8x4xf32>) {{
  {body}
  %s = stablehlo.add %k0, %k59 : tensor<1x2x8x4xf32>
  return {", ".join(f"%k{i}" for i in layers)}, %s : {types}, tensor<1x2x8x4xf32>
}}"""
    rng = np.random.default_rng(2)
    inputs = [sample(*CACHE, rng) for _ in layers] + [sample(*NEW, rng), np.array([0, 7, 3])]
    program = check(module, [CACHE] * len(layers) + [NEW, POSITIONS], inputs)
    assert program.ops() == ["scatter"] * len(layers) + ["add"]
    assert program.program["arena_bytes"] == 0


def test_an_update_through_a_transposed_view_is_in_place() -> None:
    module = """func.func @main(%cache: tensor<4x6xf32> {tf.aliasing_output = 0 : i32}, %new: tensor<1x4xf32>, %at: tensor<i32>)
      -> tensor<4x6xf32> {
  %t = stablehlo.transpose %cache, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %u = stablehlo.dynamic_update_slice %t, %new, %at, %z : (tensor<6x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<6x4xf32>
  %r = stablehlo.transpose %u, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}"""
    rng = np.random.default_rng(3)
    types = [((4, 6), "f32"), ((1, 4), "f32"), ((), "i32")]
    program = check(module, types, [sample(*types[0], rng), sample(*types[1], rng), np.array(9, np.int32)])
    assert program.ops() == ["dynamic_update_slice"]


def test_the_old_value_read_after_the_update_is_the_old_value() -> None:
    module = f"""func.func @main(%cache: tensor<1x2x8x4xf32> {{tf.aliasing_output = 0 : i32}}, %new: tensor<1x2x3x4xf32>,
      %at: tensor<3xi64>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) {{
  {scatter_rows("%k", "%cache", "%at", "%new")}
  %d = stablehlo.subtract %k, %cache : tensor<1x2x8x4xf32>
  return %k, %d : tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>
}}"""
    check(module, [CACHE, NEW, POSITIONS], _inputs(np.random.default_rng(4)))


def test_the_old_value_returned_beside_the_new_one() -> None:
    module = f"""func.func @main(%cache: tensor<1x2x8x4xf32> {{tf.aliasing_output = 1 : i32}}, %new: tensor<1x2x3x4xf32>,
      %at: tensor<3xi64>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) {{
  {scatter_rows("%k", "%cache", "%at", "%new")}
  return %cache, %k : tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>
}}"""
    check(module, [CACHE, NEW, POSITIONS], _inputs(np.random.default_rng(5)))


def test_an_update_taken_from_the_cache_itself() -> None:
    module = """func.func @main(%cache: tensor<8xf32> {tf.aliasing_output = 0 : i32}, %at: tensor<i32>) -> tensor<8xf32> {
  %head = stablehlo.slice %cache [0:3] : (tensor<8xf32>) -> tensor<3xf32>
  %u = stablehlo.dynamic_update_slice %cache, %head, %at : (tensor<8xf32>, tensor<3xf32>, tensor<i32>) -> tensor<8xf32>
  return %u : tensor<8xf32>
}"""
    check(module, [((8,), "f32"), ((), "i32")], [np.arange(8, dtype=np.float32), np.array(1, np.int32)])


def test_two_updates_in_a_row_share_the_memory() -> None:
    module = """func.func @main(%cache: tensor<8xf32> {tf.aliasing_output = 0 : i32}, %a: tensor<2xf32>, %at: tensor<i32>)
      -> tensor<8xf32> {
  %u = stablehlo.dynamic_update_slice %cache, %a, %at : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %next = stablehlo.add %at, %one : tensor<i32>
  %v = stablehlo.dynamic_update_slice %u, %a, %next : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
  return %v : tensor<8xf32>
}"""
    types = [((8,), "f32"), ((2,), "f32"), ((), "i32")]
    program = check(
        module, types, [np.arange(8, dtype=np.float32), np.array([50, 60], np.float32), np.array(3, np.int32)]
    )
    assert program.copied_bytes() == 0


@pytest.mark.parametrize("first", ["%a", "%b", "%s"])
@pytest.mark.parametrize("second", ["%a", "%b", "%s", "%t"])
@pytest.mark.parametrize("third", ["%a", "%t", "%s"])
def test_inputs_may_exchange_their_values(first: str, second: str, third: str) -> None:
    module = f"""func.func @main(%a: tensor<2x2xf32> {{tf.aliasing_output = 0 : i32}}, %b: tensor<2x2xf32> {{tf.aliasing_output = 1 : i32}})
      -> (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) {{
  %s = stablehlo.add %a, %b : tensor<2x2xf32>
  %t = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
  return {first}, {second}, {third} : tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>
}}"""
    types = [((2, 2), "f32")] * 2
    check(module, types)


def test_a_counter_is_advanced_in_place() -> None:
    module = """func.func @main(%n: tensor<i64> {tf.aliasing_output = 0 : i32}) -> tensor<i64> {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %m = stablehlo.add %n, %one : tensor<i64>
  return %m : tensor<i64>
}"""
    program = check(module, [((), "i64")])
    assert program.ops() == ["add"]
    assert program.program["arena_bytes"] == 0


def test_one_value_for_two_outputs_of_which_one_is_an_input() -> None:
    module = """func.func @main(%n: tensor<4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %m = stablehlo.exponential %n : tensor<4xf32>
  return %m, %m, %m : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}"""
    check(module, [((4,), "f32")])


def test_a_returned_value_that_is_updated_later_keeps_its_value() -> None:
    module = """func.func @main(%x: tensor<8xf32>, %u: tensor<2xf32>, %at: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %e = stablehlo.exponential %x : tensor<8xf32>
  %v = stablehlo.dynamic_update_slice %e, %u, %at : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
  return %e, %v : tensor<8xf32>, tensor<8xf32>
}"""
    types = [((8,), "f32"), ((2,), "f32"), ((), "i32")]
    check(module, types, [np.arange(8, dtype=np.float32), np.array([5, 6], np.float32), np.array(-3, np.int32)])


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        (("{tf.aliasing_output = 3 : i32}", ""), "output 3"),
        (("{tf.aliasing_output = 0 : i32}", "{tf.aliasing_output = 0 : i32}"), "both alias output 0"),
        (("", "{tf.aliasing_output = 1 : i32}"), "another type"),
    ],
)
def test_impossible_aliases_are_refused(attributes: tuple[str, str], fault: str) -> None:
    module = f"""func.func @main(%a: tensor<2xf32> {attributes[0]}, %b: tensor<2xf32> {attributes[1]}) -> (tensor<2xf32>, tensor<1xf32>) {{
  %s = stablehlo.slice %a [0:1] : (tensor<2xf32>) -> tensor<1xf32>
  return %b, %s : tensor<2xf32>, tensor<1xf32>
}}"""
    with pytest.raises(JobError, match=fault) as error:
        compile_module(module.encode(), "bad", "test")
    assert error.value.kind == "invalid-module"
