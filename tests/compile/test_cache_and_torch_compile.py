# SPDX-License-Identifier: Apache-2.0
"""The compile cache under torch.compile: what is compiled, what is only loaded, and that both give the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_oracle import DEVICE, compiled, copied, to_device
from torch.utils import _pytree as pytree

from fresh_process import FreshPython
from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import backend
from libtorch_neuronx_lite.compile.entry import METADATA, Artifact
from libtorch_neuronx_lite.runtime.plan_record import PlanError, from_record


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache; the keys of what a compiler is started for."""
    keys: list[str] = []
    build_entry = backend.build_entry

    def recorded(folder: Path, **keywords: Any) -> dict[str, Any]:
        keys.append(keywords["request"].key)
        return build_entry(folder, **keywords)

    monkeypatch.setattr(backend, "build_entry", recorded)
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "root"))
    return keys


def _updates(cache: torch.Tensor, x: torch.Tensor) -> Any:
    cache[:, 1:3] = x[:, :2]
    return cache.sum(), cache[1:], x.t(), 7


def _mixed(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.cpu() + 1, x[:0], y * 2, torch.zeros(0, 3, device=x.device)


def _draws(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) * 0 + torch.rand_like(x) * 0 + x


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "updates and windows": (_updates, (torch.zeros(3, 4), torch.randn(3, 4))),
    "results on the CPU and without elements": (_mixed, (torch.randn(3, 3), torch.randn(2))),
    "random numbers": (_draws, (torch.randn(5),)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hit_is_called_like_what_was_compiled(name: str, built: list[str]) -> None:
    function, args = CASES[name]
    want_args = copied(args)
    want = function(*want_args)
    for _ in range(2):
        got_args = to_device(copied(args))
        with torch.no_grad():
            got = compiled(function)(*got_args)
        leaves = pytree.tree_leaves((want, want_args)), pytree.tree_leaves((got, got_args))
        for expected, actual in zip(*leaves, strict=True):
            if isinstance(expected, torch.Tensor):
                assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
                torch.testing.assert_close(actual.cpu(), expected)
            else:
                assert actual == expected
    assert len(built) == 1


_FRESH = """
    import logging, sys, torch, libtorch_neuronx_lite
    from libtorch_neuronx_lite.compile.native_backend import register
    from libtorch_neuronx_lite.worker import pool

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("neuron:0")
    x = torch.ones(2, 8).to("neuron:0")
    with torch.no_grad():
        y = torch.compile(model, backend=register(), dynamic=False)(x)
    print(pool._pool is None, [round(v, 5) for v in y.cpu().flatten().tolist()])
"""


def test_another_process_starts_no_compiler(tmp_path: Path, fresh_python: FreshPython) -> None:
    first = fresh_python(_FRESH, NEURON_LIBTORCH_CACHE_ROOT=str(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "two")
    second = fresh_python(
        _FRESH, NEURON_LIBTORCH_CACHE_ROOT=str(tmp_path / "two"), NEURON_LIBTORCH_ASSERT_CACHE_HIT="1"
    )
    assert first.startswith("False ")
    assert second == first.replace("False", "True")


def test_a_miss_is_an_error_where_that_is_asked_for(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.no_grad():
        compiled(lambda x: x * 31)(x)
        monkeypatch.setenv("NEURON_LIBTORCH_ASSERT_CACHE_HIT", "1")
        assert compiled(lambda x: x * 31)(x).cpu().tolist() == [31.0] * 3
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
            compiled(lambda x: x * 31, options={"model_name": "decode"})(x)
    error = caught.value.inner_exception
    assert isinstance(error, _errors.CacheMissError)
    assert "graph 'decode' is not in the compile cache" in str(error)
    assert "label is graph there and decode here" in str(error)
    assert len(built) == 1


def test_the_cache_can_be_left_out(built: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_DISABLE_COMPILE_CACHE", "1")
    x = torch.ones(3, device=DEVICE)
    with torch.no_grad():
        for _ in range(2):
            assert compiled(lambda x: x * 37)(x).cpu().tolist() == [37.0] * 3
    assert len(built) == 2
    assert not (tmp_path / "root").exists()


def test_the_folder_is_an_option(built: list[str], tmp_path: Path) -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.no_grad():
        for rank in (0, 1, 0):
            compiled(lambda x: x * 41, options={"compiler_workdir": tmp_path / f"rank{rank}"})(x)
    assert len(built) == 2
    assert built[0] == built[1]
    assert (tmp_path / "rank1" / built[0]).is_dir()
    assert not (tmp_path / "root").exists()


def test_the_remote_folder_serves_a_local_miss(
    built: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from libtorch_neuronx_lite.compile import save_cache

    x = torch.ones(3, device=DEVICE)
    local = tmp_path / "root" / "neuron" / "compile_cache"
    with torch.no_grad():
        compiled(lambda x: x * 43)(x)
        save_cache(local, tmp_path / "remote", built[0])
        monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path / "other"))
        monkeypatch.setenv("NEURON_LIBTORCH_REMOTE_CACHE", str(tmp_path / "remote"))
        assert compiled(lambda x: x * 43)(x).cpu().tolist() == [43.0] * 3
    assert len(built) == 1


def test_an_entry_with_an_unfit_plan_is_made_anew(
    built: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.no_grad():
        compiled(lambda x: x * 47)(x)
        path = tmp_path / "root" / "neuron" / "compile_cache" / built[0] / METADATA
        data = json.loads(path.read_text())
        data["call"]["arguments"] = [5]
        path.write_text(json.dumps(data))
        with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
            assert compiled(lambda x: x * 47)(x).cpu().tolist() == [47.0] * 3
    assert len(built) == 2
    assert "arguments: 5 is not a whole number from 0 to 0" in caplog.text


def test_two_devices_in_one_graph_are_refused_on_a_hit_too(built: list[str]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 53, y + 53

    with torch.no_grad():
        compiled(f)(torch.ones(2, device="neuron:0"), torch.ones(2, device="neuron:0"))
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="one graph works on one neuron core"):
            compiled(f)(torch.ones(2, device="neuron:0"), torch.ones(2, device="neuron:1"))
        first, second = compiled(f)(torch.ones(2, device="neuron:1"), torch.ones(2, device="neuron:1"))
    assert first.device == second.device == torch.device("neuron:1")
    assert len(built) == 1


def test_hooks_are_told_the_folder(built: list[str]) -> None:
    from libtorch_neuronx_lite.compile.execute_context import ExecuteContext, ExecutionMeta, set_execute_context

    seen: list[ExecutionMeta] = []
    run = compiled(lambda x: x * 59)
    set_execute_context(ExecuteContext(pre_execute_hook=lambda inputs, meta: seen.append(meta)))
    try:
        with torch.no_grad():
            run(torch.ones(2, device=DEVICE))
    finally:
        set_execute_context(None)
    assert seen[0].neff_id == built[0]
    assert seen[0].artifact_dir is not None
    assert Path(seen[0].artifact_dir).name == built[0]


_PLAN: dict[str, Any] = {
    "argument_count": 2, "arguments": [0, 1], "results": [["output", 0]], "has_rng_seed": False, "constants": 0,
    "cpu_arguments": [], "written_arguments": [], "values": {}, "windows": {}, "empties": {}, "cpu_results": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"argument_count": -1}, {"argument_count": True}, {"arguments": [2]}, {"arguments": [1 << 70]},
     {"arguments": "01"}, {"results": [["input", 2]]}, {"results": [["jump", 0]]}, {"results": [["output"]]},
     {"has_rng_seed": 1}, {"constants": 1}, {"values": {"1": 0}}, {"values": {"-1": 0}}, {"values": {"0": []}},
     {"values": []},
     {"windows": {"0": {"on_argument": True, "size": [2], "stride": [1, 1], "offset": 0}}},
     {"windows": {"0": {"on_argument": True, "size": [1 << 63], "stride": [1], "offset": 0}}},
     {"empties": {"0": {"size": [4], "stride": [1], "dtype": "float32", "on_cpu": True}}},
     {"empties": {"0": {"size": [0], "stride": [1], "dtype": "nn", "on_cpu": True}}},
     {"cpu_results": [1]}, {"cpu_arguments": None}],
    ids=str,
)  # fmt: skip
def test_a_plan_from_outside_is_checked(change: dict[str, Any]) -> None:
    from_record(_PLAN, [], torch.device("cpu"))
    with pytest.raises(PlanError, match=next(iter(change))):
        from_record({**_PLAN, **change}, [], torch.device("cpu"))
    with pytest.raises(PlanError, match="a call plan is an object"):
        from_record(None, [], torch.device("cpu"))


def test_the_key_can_be_asked_for_without_compiling(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from libtorch_neuronx_lite.compile import cache

    asked: list[str] = []
    build: Callable[..., Artifact] = backend.build_executable

    def ask_first(**keywords: Any) -> Artifact:
        asked.append(cache.create_cache_hash(keywords["gm"], keywords["example_inputs"]))
        return build(**keywords)

    monkeypatch.setattr(backend, "build_executable", ask_first)
    with torch.no_grad():
        compiled(lambda x: x * 61)(torch.ones(2, device=DEVICE))
    assert asked == built
