# SPDX-License-Identifier: Apache-2.0
"""The backend that traces and lowers, and leaves the compiling to `parallel_compile`.

A captured entry has the graph and its metadata, and neither NEFF nor marker. Calling a captured model raises
CaptureComplete; each graph of a model with graph breaks is captured when it is reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from .. import envs
from .._errors import OptionError
from .._log import get_logger
from . import backend
from .entry import MODULE
from .no_device import CaptureComplete, not_here
from .options import Options
from .request import request_for
from .store import Store

__all__ = ["CaptureComplete", "capture", "graph_capture"]

_logger = get_logger(__name__)


def capture(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Put an AOTAutograd inference graph into the cache, uncompiled; return a function that raises CaptureComplete.

    What is in the cache already, captured or compiled, is left as it is.

    Raises:
        OptionError: an unknown option or target.
        CompileError: the graph cannot be lowered.
        CacheError: the cache cannot be written.
    """
    parsed = Options.parse(options)
    gm, example_inputs = backend.preprocess_and_validate_inputs(gm, example_inputs, options)
    request = request_for(gm, parsed)

    def write(folder: Path) -> dict[str, Any]:
        _, metadata = backend.write_graph(folder, gm=gm, example_inputs=example_inputs, request=request)
        return {**metadata, "module_sha256": hashlib.sha256((folder / MODULE).read_bytes()).hexdigest()}

    store = Store.from_environment(parsed.compiler_workdir)
    if store.capture(request.key, write, name=request.name):
        _logger.info("graph %s (%s): captured into %s", request.name, request.key, store.root)
    return not_here(f"graph '{request.name}' ({request.key}) was captured, for parallel_compile to compile")


def graph_capture(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The torch.compile backend that captures: see the top of this file.

    Raises:
        OptionError: NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND is set; or an unknown option or target.
        CompileError: the graph cannot be lowered.
    """
    from . import tracing

    if envs.NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND:
        raise OptionError("the capture backend is switched off by NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND=1")
    chosen = Options.parse(options)
    if chosen.alias_meta_to_neuron:
        example_inputs = backend.meta_to_neuron(example_inputs)

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return capture(graph, inputs, options)

    return tracing.trace(gm, example_inputs, compiler, optional_passes=chosen.enable_fx_passes)
