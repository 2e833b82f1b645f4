# SPDX-License-Identifier: Apache-2.0
"""What cannot be compiled is one exception that names the thing, the line and the remedy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_oracle import DEVICE, compiled

from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import backend
from libtorch_neuronx_lite.compile.native_backend import check_route, register

HERE = "test_refusals.py"


def _failure(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compile, expect failure, return the exception of ours that torch wraps."""
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(function, **kwargs)(*args)
    return caught.value.inner_exception


def test_gradients() -> None:
    module = torch.nn.Linear(3, 3).to(DEVICE)
    with pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match="neuron backend doesn't support events"
    ) as caught:
        compiled(module)(torch.randn(2, 3, device=DEVICE))
    assert isinstance(caught.value.inner_exception, _errors.GradientError)
    assert "torch.no_grad()" in str(caught.value)


def test_grad_mode_without_anything_that_needs_gradients_compiles() -> None:
    assert compiled(lambda x: x + 1)(torch.ones(2, device=DEVICE)).cpu().tolist() == [2.0, 2.0]


def test_unsupported_operator(tmp_path: Path) -> None:
    error = _failure(
        lambda x: torch.histc(x), torch.randn(3, device=DEVICE), options={"compiler_workdir": str(tmp_path)}
    )
    assert isinstance(error, _errors.UnsupportedOperatorError)
    assert error.operator == "aten.histc.default"
    assert HERE in error.source
    assert "torch.histc(x)" in str(error)
    assert error.repro.is_file()
    assert error.repro.is_relative_to(tmp_path)
    assert "histc" in error.repro.read_text()


def test_an_operator_that_torch_mlir_renames_keeps_its_line() -> None:
    error = _failure(lambda x: torch.linalg.det(x + 1), torch.eye(3, device=DEVICE))
    assert "linalg_det" in str(error)
    assert HERE in str(error)


def test_an_operator_with_side_effects_on_the_host() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"torch\.linalg\.inv") as caught:
        compiled(lambda x: torch.linalg.inv(x))(torch.eye(3, device=DEVICE))
    error = caught.value.inner_exception
    assert isinstance(error, _errors.UnsupportedOperatorError)
    assert error.operator.startswith("aten.")


@pytest.mark.parametrize("select", [torch.nonzero, lambda x: x[x > 1], torch.unique], ids=["nonzero", "mask", "unique"])
def test_sizes_that_depend_on_values(select: Callable[[torch.Tensor], torch.Tensor]) -> None:
    error = _failure(lambda x: select(x) * 2, torch.arange(3, device=DEVICE), fullgraph=True)
    assert isinstance(error, _errors.CompileError)
    assert "only the values of a tensor decide" in str(error)
    assert HERE in str(error)


def test_failures_keep_no_device_memory() -> None:
    def attempt(size: int) -> None:
        x = torch.randn(size, size, device=DEVICE)
        assert isinstance(_failure(lambda x: torch.linalg.svd(x)[1], x), _errors.UnsupportedOperatorError)

    attempt(3)
    torch._dynamo.reset()
    gc.collect()
    before = torch.neuron.memory_allocated()
    for _ in range(2):
        attempt(300)
    torch._dynamo.reset()
    gc.collect()
    assert torch.neuron.memory_allocated() <= before


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint16, torch.uint32, torch.uint64])
def test_dtypes_that_the_chip_lacks(dtype: torch.dtype) -> None:
    error = _failure(lambda x: x[1:], torch.ones(3, device=DEVICE).to(dtype))
    assert isinstance(error, _errors.UnsupportedDtypeError)
    assert str(dtype).removeprefix("torch.") in str(error)
    assert "arg0_1" in str(error)
    assert HERE in str(error)


def test_a_float64_value_inside_a_graph() -> None:
    error = _failure(lambda x: (x.double() * 2).float(), torch.ones(3, device=DEVICE))
    assert isinstance(error, _errors.UnsupportedDtypeError)
    assert "_to_copy" in str(error)
    assert HERE in str(error)


def test_a_lowering_that_aborts_inside_mlir(tmp_path: Path) -> None:
    error = _failure(
        lambda x: (x + 1).cfloat(), torch.ones(3, device=DEVICE), options={"compiler_workdir": str(tmp_path)}
    )
    assert isinstance(error, _errors.CompileError)
    assert "SIGABRT" in str(error)
    assert "aten._to_copy.default" in str(error)
    assert HERE in str(error)
    assert error.repro.is_file()
    with torch.no_grad():  # the process and its workers go on
        assert compiled(lambda x: x + 1)(torch.ones(2, device=DEVICE)).cpu().tolist() == [2.0, 2.0]


def test_two_devices_in_one_graph() -> None:
    with torch.no_grad(), pytest.raises(Exception, match="neuron:1"):
        compiled(lambda x, y: (x + 1, y + 1))(torch.ones(2, device=DEVICE), torch.ones(2, device="neuron:1"))


def test_unknown_option() -> None:
    error = _failure(lambda x: x + 1, torch.ones(2, device=DEVICE), options={"compilerargs": "-O1"})
    assert isinstance(error, _errors.OptionError)
    assert "Did you mean 'compiler_args'?" in str(error)


def test_option_of_the_wrong_type() -> None:
    error = _failure(lambda x: x + 1, torch.ones(2, device=DEVICE), options={"enable_fx_passes": "no"})
    assert "'enable_fx_passes' must be True or False" in str(error)


def test_unknown_target() -> None:
    error = _failure(lambda x: x + 1, torch.ones(2, device=DEVICE), options={"compiler_args": ["--target=trn9"]})
    assert isinstance(error, _errors.OptionError)
    assert "trn2" in str(error)


def test_a_chip_target_without_its_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = _failure(lambda x: x + 1, torch.ones(2, device=DEVICE), options={"compiler_args": "--target trn2"})
    assert isinstance(error, _errors.CompilerNotFoundError)
    assert "neuronx-cc" in str(error)
    assert "NEURON_PLATFORM_TARGET_OVERRIDE=host" in str(error)


@pytest.mark.parametrize("route", ["neuron_native", "neuron"])
def test_routes(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_BACKEND", route)
    assert register() == register() == "neuron_native_lite"


def test_the_deprecated_route_is_not_offered() -> None:
    with pytest.raises(_errors.OptionError, match="deprecated HLO route"):
        check_route("vllm_neuron")


def test_unknown_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_BACKEND", "neuron_nativ")
    with pytest.raises(_errors.OptionError, match=r"Did you mean 'neuron_native'\?.*choices"):
        register()


def test_input_count_is_checked() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(_errors.CompileError, match="1 placeholders and 2 example inputs"):
        backend.preprocess_and_validate_inputs(graph, [torch.ones(1), torch.ones(1)])
