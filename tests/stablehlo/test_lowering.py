# SPDX-License-Identifier: Apache-2.0
"""StableHLO of a graph: aliases on arguments, no f64, narrow products, a digest of nothing but the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from libtorch_neuronx_lite import _errors, worker
from libtorch_neuronx_lite.fx_passes.prepare import prepare
from libtorch_neuronx_lite.stablehlo.lower import LoweredGraph, lower

sys.path.insert(0, str(Path(__file__).parents[1] / "fx_passes"))
from graph_tracing import inference_graph


@pytest.fixture
def lowered(tmp_path: Path) -> Callable[..., LoweredGraph]:
    def run(function: Callable[..., Any], *args: torch.Tensor) -> LoweredGraph:
        def then(gm: fx.GraphModule) -> LoweredGraph:
            prepared = prepare(gm)
            return lower(prepared.gm, prepared.input_aliases(), name="graph", repro_dir=tmp_path)

        return inference_graph(function, *args, then=then)

    return run


def test_aliases_stand_on_the_arguments(lowered: Callable[..., LoweredGraph]) -> None:
    def f(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        second.add_(x)
        first.mul_(x)
        return x + 1

    text = lowered(f, torch.ones(2), torch.ones(2), torch.ones(2)).text()
    signature = next(line for line in text.splitlines() if "@main" in line)
    assert signature.count("tf.aliasing_output") == 2
    assert signature.count("tensor<2xf32> {tf.aliasing_output = 0 : i32}") == 1
    assert signature.count("tensor<2xf32> {tf.aliasing_output = 1 : i32}") == 1


def test_only_stablehlo_and_no_f64(lowered: Callable[..., LoweredGraph]) -> None:
    text = lowered(
        lambda x, i: (torch.arange(7) + i, x.var(-1), torch.nn.functional.gelu(x), i // 3, x > 0.3, x.mean()),
        torch.randn(3, 7), torch.arange(7),
    ).text()  # fmt: skip
    assert "f64" not in text
    assert "arith." not in text
    assert "dynamic" not in text
    assert "iota" in text


def test_attention_multiplies_bf16_and_keeps_f32_scores(lowered: Callable[..., LoweredGraph]) -> None:
    from libtorch_neuronx_lite.fx_passes.attention import scaled_dot_product_attention

    q = torch.randn(1, 2, 4, 8).bfloat16()
    text = lowered(lambda q: scaled_dot_product_attention(q, q, q), q).text()
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert len(dots) == 2
    for line in dots:
        assert line.count("xbf16>") == 2
        assert line.rstrip().endswith("xf32>")


def test_the_digest_is_of_the_program_alone(lowered: Callable[..., LoweredGraph]) -> None:
    def one(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.add(first, second, alpha=1)

    def two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a + b
        return c

    x = torch.ones(3)
    same, other_spelling = lowered(one, x, x + 1), lowered(two, x, x + 1)
    assert same.digest == other_spelling.digest
    assert same.digest != lowered(lambda a, b: a - b, x, x + 1).digest
    assert same.digest != lowered(two, torch.ones(4), torch.ones(4)).digest


def test_the_digest_covers_the_elements_of_literals(lowered: Callable[..., LoweredGraph]) -> None:
    x = torch.ones(3)
    first = lowered(lambda a: a * torch.tensor([1.0, 2.0, 3.0]), x)
    second = lowered(lambda a: a * torch.tensor([1.0, 2.0, 4.0]), x)
    assert first.digest != second.digest
    assert "dense<[1.000000e+00, 2.000000e+00, 3.000000e+00]>" in first.text()


def test_locations_name_the_users_lines(lowered: Callable[..., LoweredGraph]) -> None:
    assert b"test_lowering.py" in lowered(lambda a: a.exp(), torch.ones(3)).bytecode


def test_a_job_that_is_refused_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise worker.JobError("lowering", "a pass failed", location='loc("model.py":3:0)')

    monkeypatch.setattr(worker, "run", refuse)

    def then(gm: fx.GraphModule) -> str:
        with pytest.raises(_errors.CompileError, match="a pass failed") as caught:
            lower(prepare(gm).gm, {}, name="graph", repro_dir=tmp_path)
        assert caught.value.repro is not None
        assert caught.value.repro.is_file()
        return str(caught.value)

    assert "model.py" in inference_graph(lambda a: a + 1, torch.ones(3), then=then)
