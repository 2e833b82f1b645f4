# SPDX-License-Identifier: Apache-2.0
"""Python imports follow the folder table, wherever in a file they stand."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_rules import PACKAGE, PYTHON_RULES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "python" / PACKAGE


def _unit(path: Path) -> str:
    """The folder or module of the table that a file belongs to."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything the file imports; `from x import y` gives x.y."""
    package = [PACKAGE, *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*prefix, alias.name])


FILES = sorted(SOURCE.rglob("*.py"))


def test_the_table_knows_every_folder() -> None:
    assert FILES
    assert {_unit(path) for path in FILES} - set(PYTHON_RULES) == set()


def test_the_table_is_in_the_order_of_the_flow() -> None:
    order = ["_C", *PYTHON_RULES]
    upwards = [
        (unit, other) for unit, rule in PYTHON_RULES.items() for other in rule.package
        if other in order and order.index(other) > order.index(unit)
    ]  # fmt: skip
    assert upwards == []


@pytest.mark.parametrize("unit", sorted(PYTHON_RULES))
def test_imports(unit: str) -> None:
    rule = PYTHON_RULES[unit]
    broken: list[str] = []
    for path in (path for path in FILES if _unit(path) == unit):
        for line, name in _imports(path):
            top, *rest = name.split(".")
            where = f"{path.relative_to(ROOT)}:{line} imports {name}"
            if top == PACKAGE:
                # `import libtorch_neuronx_lite` itself registers the device: only the command may ask for it.
                target = rest[0] if rest else "__init__"
                allowed = target == unit or target in rule.package or (unit == "cli" and target == "__init__")
                if not allowed and (target in PYTHON_RULES or target == "_C" or not rest):
                    broken.append(where)
            elif top not in sys.stdlib_module_names and top not in rule.external:
                broken.append(where)
            if any(name == prefix or name.startswith(prefix + ".") for prefix in rule.forbidden):
                broken.append(where + " (forbidden by name)")
    assert broken == []


def test_hostcc_and_worker_never_name_torch() -> None:
    for unit in ("hostcc", "worker"):
        assert "torch" not in PYTHON_RULES[unit].external


def test_only_register_has_process_wide_effects() -> None:
    calls = {"rename_privateuse1_backend", "generate_methods_for_privateuse1_backend", "_register_device_module"}
    found = {
        (_unit(path), node.attr)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in calls
    }
    assert found == {("_register", name) for name in calls}
