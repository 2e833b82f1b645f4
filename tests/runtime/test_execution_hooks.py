# SPDX-License-Identifier: Apache-2.0
"""Hooks around the execution of compiled graphs: what they see, what they replace, and that they go away."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from libtorch_neuronx_lite.compile.execute_context import ExecuteContext, ExecutionMeta, set_execute_context

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))
from eager_oracle import DEVICE, compiled


@pytest.fixture(autouse=True)
def _no_hooks_left() -> Iterator[None]:
    yield
    set_execute_context(None)


def test_the_first_hook_sees_the_inputs_after_filtering() -> None:
    seen: list[tuple[tuple[torch.Tensor, ...], ExecutionMeta]] = []
    run = compiled(lambda x, unused, y: x + y + torch.rand_like(x) * 0)
    x, y = torch.ones(3, device=DEVICE), torch.full((3,), 2.0, device=DEVICE)
    with torch.no_grad():
        set_execute_context(ExecuteContext(pre_execute_hook=lambda inputs, meta: seen.append((inputs, meta))))
        assert run(x, x.clone(), y).cpu().tolist() == [3.0] * 3
        set_execute_context(None)
        run(x, x.clone(), y)
    ((inputs, meta),) = seen
    assert len(inputs) == 2
    assert inputs[0] is x
    assert inputs[1] is y
    assert len(meta.neff_id) == 32
    assert meta.device_id == 0


def test_the_second_hook_stands_in_for_the_execution() -> None:
    nines = torch.full((2,), 9.0).to(DEVICE)

    def execute(inputs: tuple[torch.Tensor, ...], meta: ExecutionMeta) -> Sequence[Any]:
        return [nines]

    run = compiled(lambda x: (x + 1, None, 4))
    with torch.no_grad():
        set_execute_context(ExecuteContext(execute_hook=execute))
        value, nothing, number = run(torch.ones(2, device=DEVICE))
    assert value.cpu().tolist() == [9.0, 9.0]
    assert (nothing, number) == (None, 4)


def test_graphs_that_are_one_program_share_one_executable() -> None:
    from libtorch_neuronx_lite.runtime import executables

    torch._dynamo.reset()
    gc.collect()
    before = len(executables._loaded)
    with torch.no_grad():
        first = compiled(lambda x: x * 23)
        second = torch.compile(lambda y: y * 23, backend="neuron_native_lite", dynamic=False)
        x = torch.ones(2, device=DEVICE)
        assert first(x).cpu().tolist() == second(x).cpu().tolist() == [23.0, 23.0]
        assert len(executables._loaded) == before + 1


def test_a_call_with_another_shape_is_refused_before_it_runs() -> None:
    from libtorch_neuronx_lite import _C

    folders: list[str | None] = []
    with torch.no_grad():
        run = compiled(lambda x: x * 29)
        set_execute_context(ExecuteContext(pre_execute_hook=lambda inputs, meta: folders.append(meta.artifact_dir)))
        run(torch.ones(2, device=DEVICE))
    set_execute_context(None)
    (folder,) = folders
    assert folder is not None
    (file,) = Path(folder).glob("*.neff")
    executable = _C.Executable.load(file.read_bytes(), 0)
    call = _C.GraphCall(executable, [0], [("output", 0)], False)
    assert call([torch.ones(2, device=DEVICE)])[0].cpu().tolist() == [29.0, 29.0]
    for wrong in (torch.ones(3, device=DEVICE), torch.ones(2), torch.ones(2, dtype=torch.int32, device=DEVICE)):
        with pytest.raises((RuntimeError, ValueError, TypeError), match="input"):
            call([wrong])
    executable.close()
    with pytest.raises(RuntimeError, match="clos"):
        call([torch.ones(2, device=DEVICE)])
