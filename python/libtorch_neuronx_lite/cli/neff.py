# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite neff FILE`: what an executable holds, read without a runtime and without torch-mlir."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import EXIT_USAGE, CommandError

EPILOG = """example:
  neuron-lite neff ~/.cache/neuron_libtorch/neuron/compile_cache/KEY/graph_KEY.neff
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `neuron-lite neff`."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a NEFF, for the chip or for the host")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def describe(path: Path) -> dict[str, Any]:
    """The contents of a NEFF as plain data, sizes in bytes.

    Raises CommandError when the file cannot be read, and ValueError or RuntimeError from the reader, naming the
    field, the value and the limit, when it is not a well-formed NEFF.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} could not be read: {error.strerror}.", EXIT_USAGE) from error
    from libtorch_neuronx_lite import _C

    return {"file": str(path), "bytes": len(content), **_C.neff_info(content)}


def run(arguments: argparse.Namespace) -> int:
    """Prints the description of `arguments.file`; returns 0."""
    try:
        info = describe(arguments.file)
    except (ValueError, RuntimeError) as error:
        raise CommandError(f"{arguments.file} is not a NEFF this version reads: {error}") from error
    if arguments.json:
        print(json.dumps(info, indent=2))
        return 0
    for line in render(info):
        print(line)
    return 0


def render(info: Mapping[str, Any]) -> Iterable[str]:
    """The lines of the human form of `describe`."""
    yield f"{info['file']}: {info['bytes']:,} bytes, target {info['target']}"
    yield "header"
    for name, value in info["header"].items():
        yield f"  {name:<16} {value}"
    for kind in ("inputs", "outputs"):
        yield f"{kind} ({len(info[kind])})"
        for variable in info[kind]:
            yield "  " + _render_variable(variable, info["inputs"])
    yield f"parts ({len(info['files'])})"
    for name, size in sorted(info["files"].items(), key=lambda item: -item[1]):
        yield f"  {size:>14,}  {name}"


def _render_variable(variable: Mapping[str, Any], inputs: list[Mapping[str, Any]]) -> str:
    shape = variable.get("shape")
    form = f"{variable['dtype']}[{', '.join(map(str, shape))}]" if shape is not None else "no shape stated"
    text = f"{variable['name']:<12} {variable['bytes']:>14,}  {form}"
    alias = variable.get("alias_input")
    if alias is not None and alias >= 0:
        text += f"  is the memory of {inputs[alias]['name']}"
    return text
