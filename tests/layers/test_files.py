# SPDX-License-Identifier: Apache-2.0
"""Rules that hold for every file: licence line, length, and environment variables that `envs` knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from folder_rules import MAX_LINES

ROOT = Path(__file__).parents[2]
_CODE = {".py", ".pyi", ".h", ".cpp", ".cmake"}
_NAMED = {"CMakeLists.txt", "Makefile", "run", "stage"}
_VARIABLE = re.compile(r"\b(NEURON_LIBTORCH_[A-Z0-9_]+)\b")
# Tests name variables that must be reported as unknown; everywhere else a name is a promise.
_PROMISING = ("python/", "csrc/", "docs/", "README.md", "CONTRIBUTING.md", "examples/", "benchmarks/")


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


FILES = _tracked()
CODE = [path for path in FILES if path.suffix in _CODE or path.name in _NAMED]


def test_spdx_line_comes_first() -> None:
    def starts_right(path: Path) -> bool:
        lines = path.read_text().splitlines()
        first = lines[1] if lines and lines[0].startswith("#!") else (lines or [""])[0]
        return re.fullmatch(r"(#|//|/\*) SPDX-License-Identifier: Apache-2\.0( \*/)?", first) is not None

    assert [str(path.relative_to(ROOT)) for path in CODE if not starts_right(path)] == []


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in CODE}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("name", ["utils", "helpers", "misc", "util", "common"])
def test_no_folder_or_file_without_a_subject(name: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in FILES if name in (path.stem, path.parent.name)] == []


def test_environment_variables_in_code_are_declared() -> None:
    declared = set(_VARIABLE.findall((ROOT / "python/libtorch_neuronx_lite/envs.py").read_text()))
    used: dict[str, str] = {}
    for path in FILES:
        relative = str(path.relative_to(ROOT))
        if relative.startswith(_PROMISING) and path.suffix not in {".so", ".png"}:
            for variable in _VARIABLE.findall(path.read_text(errors="replace")):
                used.setdefault(variable, relative)
    # A trailing underscore is a prefix in a sentence, such as NEURON_LIBTORCH_*.
    assert {name: where for name, where in used.items() if name not in declared and not name.endswith("_")} == {}
