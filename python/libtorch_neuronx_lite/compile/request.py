# SPDX-License-Identifier: Apache-2.0
"""What is asked of the compiler for one graph: its identity, target and arguments, and so its key. Changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from . import key as keys
from . import platform
from .graph_hash import GraphIdentity, identify
from .options import Options


@dataclass(frozen=True)
class CompileRequest:
    """One graph to be compiled.

    Attributes:
        key: of the executable, 32 hexadecimal digits.
        parts: what the key is made of, as the entry's metadata states it.
        identity: the graph's, with its device and constants.
        target: what it is compiled for.
        compiler_args: the caller's, without `--target`.
        name: of the graph, for messages and for the module.
        options: the caller's.
    """

    key: str
    parts: dict[str, Any] = field(repr=False)
    identity: GraphIdentity = field(repr=False)
    target: str
    compiler_args: tuple[str, ...]
    name: str
    options: Options


def request_for(gm: fx.GraphModule, options: Options) -> CompileRequest:
    """Return the request for an inference graph, not lowered and not changed.

    Raises:
        OptionError: an unknown target or optimisation level.
        CompileError: the graph has no key; see `graph_hash.identify`.
    """
    target = platform.resolve_target(options.compiler_args)
    args = tuple(platform.without_target(options.compiler_args))
    identity = identify(gm)
    parts = keys.key_parts(
        identity.digest,
        target=target,
        compiler_args=args,
        label=options.model_name,
        extra=keys.extra_components(gm, options),
    )
    name = re.sub(r"\W", "_", options.model_name)
    return CompileRequest(keys.key_of(parts), parts, identity, target, args, name, options)
