# SPDX-License-Identifier: Apache-2.0
"""C++ includes follow the folder table; umbrella headers of torch stay out; nrt_* is called in one folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_rules import CXX_RULES, TORCH_PREFIXES, UMBRELLA_HEADERS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "csrc"
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_CALL = re.compile(r"(?<![\w.>])(nrt_[a-z0-9_]+)\s*\(")

FILES = sorted([*SOURCE.rglob("*.h"), *SOURCE.rglob("*.cpp")])


def _folder(path: Path) -> str:
    relative = path.parent.relative_to(SOURCE)
    return "host/kernels" if relative.parts[:2] == ("host", "kernels") else relative.parts[0]


def _in(folder: str) -> Iterator[Path]:
    return (path for path in FILES if _folder(path) == folder)


def _code(path: Path) -> str:
    return _STRING.sub('""', _COMMENT.sub("", path.read_text()))


def rule_exceptions(folder: str, name: str) -> set[str]:
    """host hands a program to its kernels through one header, and takes no other from them."""
    return {"host/kernels"} if (folder, name) == ("host", "host/kernels/prepared_program.h") else set()


def test_the_table_knows_every_folder() -> None:
    assert FILES
    assert {_folder(path) for path in FILES} - set(CXX_RULES) == set()


@pytest.mark.parametrize("folder", sorted(CXX_RULES))
def test_includes(folder: str) -> None:
    rule = CXX_RULES[folder]
    broken: list[str] = []
    for path in _in(folder):
        for name in _INCLUDE.findall(path.read_text()):
            top = "host/kernels" if name.startswith("host/kernels/") else name.split("/")[0]
            where = f"{path.relative_to(ROOT)} includes {name}"
            if name in UMBRELLA_HEADERS:
                broken.append(where + ", an umbrella header")
            elif name.startswith(TORCH_PREFIXES):
                if not name.startswith(rule.torch or ("\0",)):
                    broken.append(where + ", which is torch's")
            elif (name == "Python.h" and folder != "bindings") or (
                top in CXX_RULES and "/" in name and top not in {folder, *rule.folders, *rule_exceptions(folder, name)}
            ):
                broken.append(where)
    assert broken == []


@pytest.mark.parametrize("folder", sorted(folder for folder, rule in CXX_RULES.items() if not rule.calls_nrt))
def test_nrt_is_called_in_its_own_folder_only(folder: str) -> None:
    interface = set(_CALL.findall(_COMMENT.sub("", (ROOT / "third_party/nrt_abi/nrt_abi.h").read_text())))
    assert "nrt_init" in interface
    broken = [
        f"{path.relative_to(ROOT)} names {name}()"
        for path in _in(folder)
        for name in _CALL.findall(_code(path))
        if name in interface
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [(r"\bTORCH_LIBRARY(_IMPL|_FRAGMENT)?\s*\(", "ops"), (r"\bPyObject\b|\bpybind11::|\bpy::", "bindings")],
)
def test_what_belongs_to_one_folder(pattern: str, folder: str) -> None:
    found = {_folder(path) for path in FILES if re.search(pattern, _code(path))}
    assert found - {folder} == set()
