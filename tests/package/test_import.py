# SPDX-License-Identifier: Apache-2.0
"""What `import libtorch_neuronx_lite` does to a process, and what it does not."""

from __future__ import annotations

import ast
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

from fresh_process import FreshPython
from libtorch_neuronx_lite import _C, _compat


def test_the_import_has_no_side_effects(fresh_python: FreshPython) -> None:
    fresh_python("""
        import os, sys, threading
        import torch
        import torch.nn.functional

        def snapshot():
            places = (torch, torch.Tensor, torch.nn.Module, torch.nn.functional, torch.UntypedStorage,
                      torch.TypedStorage, torch.nn.utils.rnn.PackedSequence, torch.serialization, torch.random,
                      torch.accelerator, torch.autograd)
            return {(place.__name__, name): id(value) for place in places for name, value in vars(place).items()}

        environment, before = dict(os.environ), snapshot()
        threads = len(os.listdir("/proc/self/task"))
        import libtorch_neuronx_lite
        assert dict(os.environ) == environment
        after = snapshot()
        changed = {name for name in before if after.get(name) != before[name]}
        assert changed == {("Tensor", "__dlpack_device__")}, changed  # for neuron tensors; torch's own list lacks them
        added = {name for _, name in after.keys() - before.keys()}
        assert added <= {"neuron", "is_neuron"}, added
        assert not torch.neuron.is_initialized()
        assert threading.active_count() == 1
        assert len(os.listdir("/proc/self/task")) == threads
        with open("/proc/self/maps") as maps:
            text = maps.read()
        assert "libnxl_runtime" in text and "libnrt" not in text
        for heavy in ("torch._dynamo", "torch._inductor", "torch_mlir", "transformers", "numpy.testing"):
            assert heavy not in sys.modules, heavy
        import libtorch_neuronx_lite as again
        assert again is libtorch_neuronx_lite
        from libtorch_neuronx_lite import _register
        _register.run()
        assert libtorch_neuronx_lite.device is torch.neuron
    """)


def test_the_import_registers_no_compile_backend(fresh_python: FreshPython) -> None:
    fresh_python("""
        import torch, libtorch_neuronx_lite
        from importlib.metadata import entry_points
        offered = {found.name for found in entry_points(group="torch_dynamo_backends") if "neuron" in found.name}
        listed = {name for name in torch.compiler.list_backends(exclude_tags=None) if "neuron" in name}
        assert listed == offered and "neuron_native_lite" not in listed, listed
    """)


def test_autoload_entry_points_are_not_offered(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert "torch.backends" not in project.get("entry-points", {})
    try:
        installed = metadata.distribution("libtorch-neuronx-lite")
    except metadata.PackageNotFoundError:
        return  # run from a build tree: the project file above is what a wheel is made from
    assert [point for point in installed.entry_points if point.group == "torch.backends"] == []


def test_the_build_the_constant_and_the_requirement_agree(repository: Path) -> None:
    assert _compat.torch_minor(_C.built_for_torch) == _compat.BUILT_FOR_TORCH_MINOR
    assert _compat.torch_minor(torch.__version__) == _compat.BUILT_FOR_TORCH_MINOR
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    wanted = "torch==" + ".".join(map(str, _compat.BUILT_FOR_TORCH_MINOR))
    assert any(line.startswith(wanted) for line in project["project"]["dependencies"])
    assert any(line.startswith(wanted) for line in project["build-system"]["requires"])


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cpu", "3.0.0", "2.9.0.dev20260101+cpu"])
def test_another_torch_minor_is_refused_with_the_remedy(version: str) -> None:
    with pytest.raises(ImportError, match=rf"built for torch 2\.13\.x, but torch {version.split('+')[0]}.*pip install"):
        _compat.check_torch_version(version)


def test_another_torch_minor_is_refused_before_the_native_part_is_loaded(fresh_python: FreshPython) -> None:
    fresh_python("""
        import sys, torch
        torch.__version__ = torch.torch_version.TorchVersion("2.12.0")
        try:
            import libtorch_neuronx_lite
        except ImportError as error:
            assert "built for torch 2.13.x" in str(error), error
        else:
            raise AssertionError("imported")
        assert "libtorch_neuronx_lite._C" not in sys.modules
    """)


def _stub(repository: Path) -> ast.Module:
    return ast.parse((repository / "python" / "libtorch_neuronx_lite" / "_C.pyi").read_text())


def _names(body: list[ast.stmt]) -> set[str]:
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return named | {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_the_stub_names_what_the_module_has(repository: Path) -> None:
    stub = _stub(repository)
    assert _names(stub.body) == {name for name in vars(_C) if not name.startswith("_")}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = {name for name in vars(getattr(_C, node.name)) if not name.startswith("_")}
            assert {name for name in _names(node.body) if not name.startswith("_")} == members, node.name


def test_the_stub_has_the_parameters_of_the_module(repository: Path) -> None:
    """pybind11 writes the signature into the docstring."""
    for node in _stub(repository).body:
        if isinstance(node, ast.FunctionDef):
            signature = (getattr(_C, node.name).__doc__ or "").splitlines()[0]
            inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
            parameters = [part.split(":")[0].strip() for part in inside.split(", ") if part]
            assert parameters == [argument.arg for argument in node.args.args], node.name


def test_the_package_is_marked_as_typed(repository: Path) -> None:
    assert (repository / "python" / "libtorch_neuronx_lite" / "py.typed").exists()


def test_runtime_info_starts_nothing(fresh_python: FreshPython) -> None:
    fresh_python("""
        import torch, libtorch_neuronx_lite
        from libtorch_neuronx_lite import _C
        info = _C.runtime_info()
        assert info["runtime"] == "host" and not info["initialized"] and info["library"] and info["reason"], info
        assert not torch.neuron.is_initialized()
        info = _C.runtime_info(initialize=True)
        assert info["initialized"] and info["core_count"] == 2 and len(info["memory"]) == 2 and info["version"], info
        assert all(0 <= used < limit for used, limit in info["memory"])
    """)


def test_what_is_not_a_neff_is_a_value_error() -> None:
    for content in (b"", b"\0" * 100, b"\0" * 5000, b"hello" * 1000):
        with pytest.raises(ValueError, match=r"\w"):
            _C.neff_info(content)
