# SPDX-License-Identifier: Apache-2.0
"""Targets, compiler arguments, the chip compiler's command, metadata and keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from libtorch_neuronx_lite import _errors, envs
from libtorch_neuronx_lite.compile import cache, neuronx_cc, platform
from libtorch_neuronx_lite.compile.options import Options
from libtorch_neuronx_lite.compile.schema import create_metadata


def test_target_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.get_platform_target() == "host"
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert platform.get_platform_target() == "trn2"
    assert platform.get_total_available_memory() == platform.HBM_MEMORY_GB["trn2"] == 24
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(ValueError, match="NEURON_PLATFORM_TARGET_OVERRIDE='trn9'"):
        platform.get_platform_target()


def test_memory_of_a_host_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.get_total_available_memory() > 0
    monkeypatch.setenv("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", "512")
    assert platform.get_total_available_memory() == 0.5


@pytest.mark.parametrize("args", ["--target trn1 -O1", ["--target=trn1"], ["-O2", "--target", "trn1"]])
def test_target_among_the_arguments(args: str | list[str]) -> None:
    assert platform.resolve_target(args) == "trn1"
    assert all("trn1" not in item for item in platform.without_target(platform.compiler_args(args)))


def test_options_are_checked() -> None:
    options = Options.parse({"compiler_args": "-O1 --lnc=2", "compiler_workdir": "/somewhere"})
    assert options.compiler_args == ("-O1", "--lnc=2")
    assert options.compiler_workdir == Path("/somewhere")
    with pytest.raises(_errors.OptionError, match="Did you mean 'model_name'"):
        Options.parse({"modelname": "x"})


def test_metadata() -> None:
    metadata = create_metadata(
        cache_key="k", output_count=2, unused_input_indices=[3, 1], has_rng_seed_parameter=True, io_map={0: 4}
    )
    assert metadata["unused_input_indices"] == [1, 3]
    assert metadata["io_map"] == {"0": 4}
    assert metadata["version"] == 0


def test_keys() -> None:
    def key(digest: str = "d", target: str = "host", args: tuple[str, ...] = (), label: str = "m") -> str:
        return cache.graph_key(digest, target=target, compiler_args=args, label=label)

    keys = {key(), key(digest="e"), key(target="trn2"), key(args=("-O1",)), key(label="n")}
    assert len(keys) == 5
    assert all(len(k) == 32 and int(k, 16) >= 0 for k in keys)
    assert key() == key()


def _stand_in(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "neuronx-cc"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


_OUTPUT = 'while [ "$1" != "--output" ]; do shift; done; out="$2"'


def test_the_chip_compiler_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, f'{_OUTPUT}; printf neff > "$out"', monkeypatch)
    work = tmp_path / "work"
    assert neuronx_cc.compile_neff("module {}", work, name="abc", target="trn2", args=["--lnc=2"]) == b"neff"
    command = (work / "command.txt").read_text()
    assert "--framework XLA --target trn2" in command
    assert "-O2 --lnc=2" in command
    assert (work / "module.mlir").read_text() == "module {}"


def test_a_level_of_the_caller_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, f'{_OUTPUT}; printf neff > "$out"', monkeypatch)
    line = neuronx_cc.command(Path("g"), Path("n"), Path("l"), "trn1", ["-O1"])
    assert "-O1" in line
    assert "-O2" not in line


@pytest.mark.parametrize(("body", "text"), [("echo bad graph >&2; exit 70", "bad graph"), ("exit 0", "wrote no NEFF")])
def test_a_failing_chip_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, text: str) -> None:
    _stand_in(tmp_path, body, monkeypatch)
    with pytest.raises(_errors.CompileError, match=text) as caught:
        neuronx_cc.compile_neff("module {}", tmp_path / "work", name="abc", target="trn2", args=[])
    assert caught.value.repro is not None


def test_a_chip_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "0.2")
    with pytest.raises(_errors.CompileError, match="NEURON_LIBTORCH_COMPILATION_TIMEOUT"):
        neuronx_cc.compile_neff("module {}", tmp_path / "work", name="abc", target="trn2", args=[])


def test_environment_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert envs.NEURON_LIBTORCH_DISABLE_COMPILE_CACHE is False
    monkeypatch.setenv("NEURON_LIBTORCH_DISABLE_COMPILE_CACHE", "1")
    assert envs.NEURON_LIBTORCH_DISABLE_COMPILE_CACHE is True
    monkeypatch.setenv("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", "none")
    with pytest.raises(ValueError, match="NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS='none'"):
        _ = envs.NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS
    with pytest.raises(AttributeError):
        _ = envs.NEURON_LIBTORCH_NOTHING
    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROOT", str(tmp_path))
    assert envs.get_neuron_compile_cache_dir() == str(tmp_path / "neuron" / "compile_cache")


def test_every_variable_has_a_default_and_a_sentence() -> None:
    for variable in envs.VARIABLES.values():
        assert variable.doc.endswith(".")
        assert variable.name in dir(envs)


def test_unknown_variables_get_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_RUNTIM", "host")
    assert envs.unknown_variables() == {"NEURON_LIBTORCH_RUNTIM": "NEURON_LIBTORCH_RUNTIME"}


def test_the_same_graph_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from eager_oracle import DEVICE, compiled

    from libtorch_neuronx_lite.compile import backend

    made: list[str] = []
    build = backend._compile_for_host
    monkeypatch.setattr(
        backend, "_compile_for_host", lambda lowered, folder: made.append(lowered.key) or build(lowered, folder)
    )
    cache.clear()
    x = torch.ones(3, device=DEVICE)
    with torch.no_grad():
        for _ in range(2):
            assert compiled(lambda x: x * 17)(x).cpu().tolist() == [17.0] * 3
    assert len(made) == 1
