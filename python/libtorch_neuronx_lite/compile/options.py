# SPDX-License-Identifier: Apache-2.0
"""The `options=` of the backends: five known keys, their types and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import OptionError, nearest
from .platform import compiler_args


@dataclass(frozen=True)
class Options:
    """What a caller chose.

    Attributes:
        compiler_args: arguments for the compiler, `--target` among them when given.
        alias_meta_to_neuron: example inputs on the meta device stand for neuron tensors.
        compiler_workdir: folder for files of the compilation, or None for the cache's own.
        model_name: label of the graphs, in their key and in messages.
        enable_fx_passes: run graph passes beyond those that correctness needs.
    """

    compiler_args: tuple[str, ...] = ()
    alias_meta_to_neuron: bool = False
    compiler_workdir: Path | None = None
    model_name: str = "graph"
    enable_fx_passes: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None) -> Options:
        """Check the keys and types of a dictionary.

        Raises:
            OptionError: an unknown key (with the nearest known one) or a value of the wrong type.
        """
        given = dict(options or {})
        known = list(cls.__dataclass_fields__)
        for key in given:
            if key not in known:
                raise OptionError(f"unknown option '{key}'.{nearest(key, known)} The options are: {', '.join(known)}.")
        for key in ("alias_meta_to_neuron", "enable_fx_passes"):
            if key in given and not isinstance(given[key], bool):
                raise OptionError(f"option '{key}' must be True or False, not {given[key]!r}")
        if "compiler_args" in given:
            value = given["compiler_args"]
            if value is not None and not isinstance(value, (str, list, tuple)):
                raise OptionError(f"option 'compiler_args' must be a string or a list of strings, not {value!r}")
            given["compiler_args"] = tuple(compiler_args(value))
        if given.get("compiler_workdir") is not None:
            given["compiler_workdir"] = Path(given["compiler_workdir"])
        if "model_name" in given:
            given["model_name"] = str(given["model_name"])
        return cls(**given)
