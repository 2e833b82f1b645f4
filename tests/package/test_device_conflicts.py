# SPDX-License-Identifier: Apache-2.0
"""Two packages that want PyTorch's one private device: a tiny second owner, and a stand-in that torch autoloads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from fresh_process import FreshPython

PYTORCHS_TEXT = "Tried to register multiple backend fallbacks for the same dispatch key PrivateUse1"

SECOND_OWNER = """
#include <torch/library.h>
static void refuse(const c10::OperatorHandle&, torch::jit::Stack*) {}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }
"""

STAND_IN = """
import sys, types
calls = []
def _autoload():
    import torch
    calls.append("autoload")
    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", sys.modules[__name__])
"""


@pytest.fixture(scope="session")
def second_owner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library that registers a boxed fallback for PrivateUse1 when it is loaded, and nothing else."""
    folder = tmp_path_factory.mktemp("second_owner")
    source, library = folder / "owner.cpp", folder / "libowner.so"
    source.write_text(SECOND_OWNER)
    lib = Path(torch.__file__).parent / "lib"
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library)]
    command += [f"-I{path}" for path in include_paths()] + [f"-L{lib}", "-ltorch_cpu", "-lc10"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    subprocess.run(command, check=True, timeout=200)
    return library


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a package torch_neuronx whose entry point torch calls at import."""
    (tmp_path / "torch_neuronx").mkdir()
    (tmp_path / "torch_neuronx" / "__init__.py").write_text(STAND_IN)
    info = tmp_path / "torch_neuronx-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_neuronx = torch_neuronx:_autoload\n")
    return tmp_path


def test_an_owner_of_the_fallback_is_found_before_ours_is_loaded(fresh_python: FreshPython, second_owner: Path) -> None:
    out = fresh_python(f"""
        import sys, torch
        torch.ops.load_library({str(second_owner)!r})
        try:
            import libtorch_neuronx_lite
        except ImportError as error:
            print(error)
        else:
            raise AssertionError("imported")
        assert "libtorch_neuronx_lite._C" not in sys.modules
        assert torch.ones(2).add(1).tolist() == [2, 2]
    """)
    assert PYTORCHS_TEXT in out
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in out
    assert "'privateuseone'" in out


def test_the_other_order_ends_in_pytorchs_own_error(fresh_python: FreshPython, second_owner: Path) -> None:
    """The other package comes second, so the message is PyTorch's; ours keeps its words so that a search finds both."""
    result = fresh_python.run(f"""
        import torch, libtorch_neuronx_lite
        torch.ops.load_library({str(second_owner)!r})
    """)
    assert result.returncode != 0
    assert PYTORCHS_TEXT in result.stderr


def test_an_owner_by_name_is_named(fresh_python: FreshPython) -> None:
    out = fresh_python("""
        import types, torch
        module = types.ModuleType("other_backend.device")
        torch.utils.rename_privateuse1_backend("other")
        torch._register_device_module("other", module)
        try:
            import libtorch_neuronx_lite
        except ImportError as error:
            print(error)
    """)
    assert "The package 'other_backend' already owns" in out
    assert "(device name 'other')" in out


@pytest.mark.parametrize("autoload", [None, "1"])
def test_an_autoloaded_owner_is_left_alone_and_named(
    fresh_python: FreshPython, stand_in: Path, monkeypatch: pytest.MonkeyPatch, autoload: str | None
) -> None:
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    environment = {} if autoload is None else {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    out = fresh_python(
        """
        import sys, torch
        import torch_neuronx
        assert torch_neuronx.calls == ["autoload"]
        assert not any(name.startswith("libtorch_neuronx_lite") for name in sys.modules), "torch loaded our package"
        assert torch.neuron is torch_neuronx
        try:
            import libtorch_neuronx_lite
        except ImportError as error:
            print(error)
        else:
            raise AssertionError("imported beside torch_neuronx")
        assert torch.neuron is torch_neuronx
        assert torch_neuronx.calls == ["autoload"]
        """,
        path=stand_in,
        **environment,
    )
    assert "The package 'torch_neuronx'" in out
    assert PYTORCHS_TEXT in out
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in out


def test_with_autoload_off_the_device_is_ours(fresh_python: FreshPython, stand_in: Path) -> None:
    fresh_python(
        """
        import sys, torch
        assert "torch_neuronx" not in sys.modules
        import libtorch_neuronx_lite
        assert torch.empty(2, device="neuron").is_neuron
        assert "torch_neuronx" not in sys.modules
        """,
        path=stand_in,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_torch_alone_never_loads_this_package(fresh_python: FreshPython) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    fresh_python(
        """
        import sys, torch
        assert not any(name.startswith("libtorch_neuronx_lite") for name in sys.modules)
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        """,
        **environment,
    )
