# SPDX-License-Identifier: Apache-2.0
"""Executable and GraphCall: a NEFF from the host compiler, called from Python, and every refusal."""

from __future__ import annotations

import pytest
import torch

from libtorch_neuronx_lite import _C
from libtorch_neuronx_lite.hostcc import compile_stablehlo

ADD = b"""func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %c = stablehlo.add %a, %b : tensor<2x3xf32>
  return %c : tensor<2x3xf32>
}"""
ACCUMULATE = b"""func.func @main(%total: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>) {
  %sum = stablehlo.add %total, %x : tensor<4xf32>
  %twice = stablehlo.add %x, %x : tensor<4xf32>
  return %sum, %twice : tensor<4xf32>, tensor<4xf32>
}"""
SEED = b"""func.func @main(%x: tensor<2xi64>, %seed: tensor<2xi64>) -> tensor<2xi64> {
  %y = stablehlo.add %x, %seed : tensor<2xi64>
  return %y : tensor<2xi64>
}"""


@pytest.fixture(scope="module")
def neffs() -> dict[str, bytes]:
    return {
        name: compile_stablehlo(text, name=name)
        for name, text in {"add": ADD, "accumulate": ACCUMULATE, "seed": SEED}.items()
    }


def _add(neffs: dict[str, bytes], device: int = 0) -> _C.GraphCall:
    return _C.GraphCall(_C.Executable.load(neffs["add"], device), [0, 1], [("output", 0)])


def test_signature(neffs: dict[str, bytes]) -> None:
    executable = _C.Executable.load(neffs["accumulate"], 1)
    assert executable.core == 1
    total, x = executable.inputs
    assert (total.dtype, total.shape, total.bytes, total.alias_input) == (torch.float32, (4,), 16, None)
    assert x.name == "input1"
    assert [spec.alias_input for spec in executable.outputs] == [0, None]
    assert "torch.float32" in repr(x)


def test_results_are_right_for_lists_tuples_and_strided_inputs(neffs: dict[str, bytes]) -> None:
    call = _add(neffs)
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    na, nb = a.to("neuron"), b.to("neuron")
    (result,) = call([na, nb.t()])
    assert result.device == na.device
    assert torch.equal(result.cpu(), a + b.t())
    assert torch.equal(call((result, result))[0].cpu(), 2 * (a + b.t()))
    assert torch.equal(_add(neffs, 1)([na.to("neuron:1"), na.to("neuron:1")])[0].cpu(), 2 * a)


def test_an_aliased_output_is_the_input_object(neffs: dict[str, bytes]) -> None:
    plan = [("output", 1), ("output", 0), ("none", 0), ("input", 2)]
    call = _C.GraphCall(_C.Executable.load(neffs["accumulate"], 0), [1, 0], plan)
    x = torch.arange(4.0, device="neuron")
    total = torch.ones(4, device="neuron")
    address, version, extra = total.data_ptr(), total._version, object()
    for _ in range(3):
        twice, updated, nothing, passed = call([x, total, extra])
        assert updated is total
        assert nothing is None
        assert passed is extra
    assert total.tolist() == [1, 4, 7, 10]
    assert twice.tolist() == [0, 2, 4, 6]
    assert total.data_ptr() == address
    assert total._version == version + 3
    strided = torch.zeros(4, 2, device="neuron")[:, 1]
    assert call([x, strided, None])[1] is strided
    assert strided.tolist() == [0, 1, 2, 3]


def test_the_seed_comes_from_the_devices_generator(neffs: dict[str, bytes]) -> None:
    call = _C.GraphCall(_C.Executable.load(neffs["seed"], 0), [0], [("output", 0)], True)
    zero = torch.zeros(2, dtype=torch.int64, device="neuron")
    torch.manual_seed(99)
    first, second = (call([zero])[0].tolist() for _ in range(2))
    assert first[0] == second[0] == 99
    assert first[1] != second[1]
    torch.manual_seed(99)
    assert call([zero])[0].tolist() == first


def test_many_queued_calls_keep_their_memory(neffs: dict[str, bytes]) -> None:
    call = _add(neffs)
    one = torch.ones(2, 3, device="neuron")
    value = torch.zeros(2, 3, device="neuron")
    for _ in range(300):
        (value,) = call([value, one])
    assert value.cpu().unique().tolist() == [300]


@pytest.mark.parametrize(
    ("second", "got"),
    [
        (lambda: torch.ones(2, 3), r"Float\[2, 3\] on cpu"),
        (lambda: torch.ones(2, 3, device="neuron:1"), "on neuron:1"),
        (lambda: torch.ones(2, 3, device="neuron", dtype=torch.float16), r"Half\[2, 3\]"),
        (lambda: torch.ones(3, 2, device="neuron"), r"Float\[3, 2\]"),
        (lambda: 3, "no tensor"),
    ],
)
def test_a_wrong_argument_is_named(neffs: dict[str, bytes], second: object, got: str) -> None:
    call = _add(neffs)
    assert callable(second)
    text = rf"argument 1 \(input 'input1'\): expected Float\[2, 3\] on neuron:0, got .*{got}"
    with pytest.raises(ValueError, match=text):
        call([torch.ones(2, 3, device="neuron"), second()])


def test_wrong_counts_and_plans(neffs: dict[str, bytes]) -> None:
    executable = _C.Executable.load(neffs["add"], 0)
    with pytest.raises(ValueError, match="takes 2 arguments, got 1"):
        _add(neffs)([torch.ones(2, 3, device="neuron")])
    with pytest.raises(TypeError, match="list or tuple"):
        _add(neffs)(torch.ones(2, 3, device="neuron"))
    with pytest.raises(ValueError, match="2 inputs, but 1 argument indices"):
        _C.GraphCall(executable, [0], [("output", 0)])
    with pytest.raises(ValueError, match="names output 3"):
        _C.GraphCall(executable, [0, 1], [("output", 3)])
    with pytest.raises(ValueError, match="'result' is none of input, output, none"):
        _C.GraphCall(executable, [0, 1], [("result", 0)])
    with pytest.raises(ValueError, match="random seed is the last input"):
        _C.GraphCall(executable, [0], [("output", 0)], True)


def test_calls_after_close_are_refused(neffs: dict[str, bytes]) -> None:
    executable = _C.Executable.load(neffs["add"], 0)
    call = _C.GraphCall(executable, [0, 1], [("output", 0)])
    x = torch.ones(2, 3, device="neuron")
    (result,) = call([x, x])
    executable.close()
    executable.close()
    assert executable.closed
    with pytest.raises(RuntimeError, match="was closed"):
        call([x, x])
    assert result.cpu().unique().tolist() == [2]


def test_bad_neffs_and_devices(neffs: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="neuron:9 does not exist"):
        _C.Executable.load(neffs["add"], 9)
    with pytest.raises(ValueError, match=r"(?i)neff"):
        _C.Executable.load(b"not a neff", 0)
    with pytest.raises(ValueError, match=r"(?i)neff"):
        _C.Executable.load(neffs["add"][:-600], 0)
