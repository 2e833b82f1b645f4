# SPDX-License-Identifier: Apache-2.0
"""Executions are queued: calls return early, chain, block when the queue is full, and fail at the first read."""

from __future__ import annotations

import pytest

from fresh_process import FreshPython

START = """
import torch, libtorch_neuronx_lite
from libtorch_neuronx_lite import _C
from libtorch_neuronx_lite.hostcc import compile_stablehlo

ADD = b'''func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.add %a, %b : tensor<4xf32>
  return %c : tensor<4xf32>
}'''
executable = _C.Executable.load(compile_stablehlo(ADD, name="add"), 0)
add = _C.GraphCall(executable, [0, 1], [("output", 0)])
one = torch.ones(4).to("neuron")
torch.neuron.synchronize()
"""
QUEUED = {"NEURON_LIBTORCH_HOST_INLINE": "0", "NEURON_LIBTORCH_EAGER_FALLBACK": "allow"}


def test_a_call_returns_before_its_result_is_there(fresh_python: FreshPython) -> None:
    """Outputs that are not there yet feed the next call, and waiting for an event waits for no more than that."""
    fresh_python(
        START
        + """
(two,) = add([one, one])
first = torch.Event("neuron")
first.record()
(three,) = add([two, one])
last = torch.Event("neuron")
last.record()
assert not last.query(), "the second call waited for its input"
first.synchronize()
assert first.query() and not last.query()
torch.neuron.synchronize()
assert last.query()
assert (two.tolist(), three.tolist()) == ([2.0] * 4, [3.0] * 4)
""",
        NEURON_LIBTORCH_HOST_FAULTS="delay_ms:execute=1000",
        **QUEUED,
    )


def test_a_full_queue_blocks_instead_of_failing(fresh_python: FreshPython) -> None:
    fresh_python(
        START
        + """
value = one
for step in range(12):
    (value,) = add([value, one])
assert value.tolist() == [13.0] * 4
""",
        NEURON_LIBTORCH_HOST_FAULTS="delay_ms:execute=20",
        NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS="2",
        **QUEUED,
    )


@pytest.mark.parametrize("inline", ["0", "1"])
def test_an_execution_error_surfaces_at_the_first_read(fresh_python: FreshPython, inline: str) -> None:
    """The call itself succeeds; the reader is told which graph failed and how, once; the device works on."""
    fresh_python(
        START
        + """
for read in (lambda: result.cpu(), lambda: result[0].item(), lambda: print(result), torch.neuron.synchronize):
    (good,) = add([one, one])
    (result,) = add([good, one])
    try:
        read()
    except RuntimeError as error:
        assert all(part in str(error) for part in ("neuron:0", "'add'", "EXEC_HW_ERR_NC_UE", "1202")), error
    else:
        raise AssertionError("no error")
    torch.neuron.synchronize()
    assert add([good, one])[0].tolist() == [3.0] * 4
executable.close()
""",
        NEURON_LIBTORCH_HOST_FAULTS=",".join(f"execute:EXEC_HW_ERR_NC_UE@{3 * read + 2}" for read in range(4)),
        **{**QUEUED, "NEURON_LIBTORCH_HOST_INLINE": inline},
    )


def test_an_execution_that_never_ends_is_a_timeout(fresh_python: FreshPython) -> None:
    fresh_python(
        START
        + """
(result,) = add([one, one])
try:
    result.cpu()
except RuntimeError as error:
    assert "'add' did not finish within 500 ms" in str(error), error
    assert "NEURON_LIBTORCH_EXECUTION_TIMEOUT" in str(error)
else:
    raise AssertionError("no error")
""",
        NEURON_LIBTORCH_HOST_FAULTS="delay_ms:execute=3000",
        NEURON_LIBTORCH_EXECUTION_TIMEOUT="0.5",
        **QUEUED,
    )
