# SPDX-License-Identifier: Apache-2.0
"""Who may name what, as data: docs/design.md in a form that a test can check. Change both together."""

from __future__ import annotations

from dataclasses import dataclass, field

PACKAGE = "libtorch_neuronx_lite"


@dataclass(frozen=True)
class PythonRule:
    """Rule of one folder, or of one module beside the folders.

    Attributes:
        package: what it may import from this package besides itself.
        external: distributions beyond the standard library that it may import.
        forbidden: prefixes of dotted names that it may not import although `external` would allow them.
    """

    package: frozenset[str] = frozenset()
    external: frozenset[str] = frozenset()
    forbidden: frozenset[str] = field(default_factory=frozenset)


def _rule(package: str = "", external: str = "", forbidden: str = "") -> PythonRule:
    return PythonRule(frozenset(package.split()), frozenset(external.split()), frozenset(forbidden.split()))


_BASE = "_errors _log envs"
_IMPORTERS = "torch_mlir.fx torch_mlir.extras torch_mlir.dialects.torch"

# In the order of the flow: nothing names what stands below it in this table, but for `_register`, which starts it all.
PYTHON_RULES: dict[str, PythonRule] = {
    "_errors": _rule(),
    "envs": _rule("_errors"),
    "_log": _rule("envs"),
    "_compat": _rule(_BASE + " _C", "torch"),
    "device": _rule(_BASE + " _C _compat", "torch"),
    "worker": _rule("_errors envs", "torch_mlir", _IMPORTERS),
    "fx_passes": _rule(_BASE, "torch"),
    "stablehlo": _rule(_BASE + " worker fx_passes", "torch torch_mlir numpy"),
    "hostcc": _rule(_BASE + " worker", "torch_mlir numpy", _IMPORTERS),
    "runtime": _rule(_BASE + " _C device", "torch"),
    "distributed": _rule(_BASE + " _C", "torch"),
    "compile": _rule(_BASE + " _C device worker fx_passes stablehlo hostcc runtime", "torch"),
    "kv": _rule(_BASE + " _C device", "torch numpy"),
    "_register": _rule(_BASE + " _C _compat device", "torch"),
    "__init__": _rule(_BASE + " _compat _register", "torch"),
    "cli": _rule(
        _BASE + " _C _compat device worker stablehlo hostcc runtime compile kv",
        "torch numpy torch_mlir transformers rich",
    ),
}


@dataclass(frozen=True)
class CxxRule:
    """Rule of one folder of csrc.

    Attributes:
        folders: folders of csrc whose headers it may include besides its own.
        torch: prefixes of torch's headers that it may include.
        calls_nrt: whether functions named nrt_* may be called or defined in it.
    """

    folders: frozenset[str]
    torch: tuple[str, ...] = ()
    calls_nrt: bool = False


def _cxx(folders: str, torch: str = "", calls_nrt: bool = False) -> CxxRule:
    return CxxRule(frozenset(folders.split()), tuple(torch.split()), calls_nrt)


CXX_RULES: dict[str, CxxRule] = {
    "core": _cxx(""),
    "nrt": _cxx("core", calls_nrt=True),
    "neff": _cxx("core"),
    "loader": _cxx("core nrt neff"),
    "kv": _cxx("core nrt"),
    "host": _cxx("core neff", calls_nrt=True),
    "host/kernels": _cxx("core host", "ATen/ c10/"),
    "device": _cxx("core nrt loader", "ATen/ c10/ torch/headeronly/"),
    "ops": _cxx(
        "core nrt loader device", "ATen/ c10/ torch/library.h torch/custom_class.h torch/csrc/ torch/headeronly/"
    ),
    "bindings": _cxx("core nrt neff loader kv device ops", "ATen/ c10/ torch/csrc/ torch/headeronly/ pybind11/"),
}

# Headers that pull in most of torch: 9 to 25 seconds and up to 1.5 GB for each file that includes one.
UMBRELLA_HEADERS = frozenset(
    {"torch/extension.h", "torch/torch.h", "torch/all.h", "torch/script.h", "ATen/ATen.h", "ATen/Functions.h",
     "ATen/NativeFunctions.h", "ATen/Operators.h"}
)  # fmt: skip
TORCH_PREFIXES = ("ATen/", "c10/", "torch/", "caffe2/", "pybind11/")
MAX_LINES = 450
