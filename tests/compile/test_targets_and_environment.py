# SPDX-License-Identifier: Apache-2.0
"""Targets, compiler arguments, metadata and environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from libtorch_neuronx_lite import _errors, envs
from libtorch_neuronx_lite.compile import platform
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


def test_a_misspelt_variable_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from libtorch_neuronx_lite.compile.native_backend import register

    monkeypatch.setenv("NEURON_LIBTORCH_CACHE_ROT", "/somewhere")
    with caplog.at_level("WARNING", "libtorch_neuronx_lite"):
        register()
        register()
    (message,) = (record.getMessage() for record in caplog.records)
    assert "NEURON_LIBTORCH_CACHE_ROT" in message
    assert "Did you mean NEURON_LIBTORCH_CACHE_ROOT?" in message
