# SPDX-License-Identifier: Apache-2.0
"""The torch.compile backend of the native route: FX to StableHLO to a NEFF that runs on `neuron`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import envs
from .._errors import OptionError, nearest
from .._log import get_logger

if TYPE_CHECKING:
    from torch import fx

_logger = get_logger(__name__)
_warned: set[str] = set()

BACKEND_NAME = "neuron_native_lite"

_NATIVE = ("neuron_native", "neuron")
_HLO = "vllm_neuron"


def register() -> str:
    """Register the backend with torch.compile and return its name. May be called any number of times.

    Raises:
        OptionError: VLLM_NEURON_BACKEND names a route that does not exist or is not offered.
    """
    check_route(envs.VLLM_NEURON_BACKEND)
    _warn_of_unknown_variables()
    from torch._dynamo.backends.registry import _BACKENDS, register_backend

    from ..device import dynamo_interface

    dynamo_interface.register()
    if BACKEND_NAME not in _BACKENDS:
        register_backend(neuron_native_lite, name=BACKEND_NAME)
    return BACKEND_NAME


def _warn_of_unknown_variables() -> None:
    """Say once for each NEURON_LIBTORCH_* variable that nothing reads that it is set in vain."""
    for name, close in envs.unknown_variables().items():
        if name not in _warned:
            _warned.add(name)
            hint = f" Did you mean {close}?" if close is not None else ""
            _logger.warning("the environment variable %s is set, and nothing reads it.%s", name, hint)


def check_route(route: str) -> None:
    """Raise OptionError unless `route`, a value of VLLM_NEURON_BACKEND, is the native one."""
    if route in _NATIVE:
        return
    if route == _HLO:
        raise OptionError(
            f"VLLM_NEURON_BACKEND={_HLO} asks for the deprecated HLO route, which this version does not offer."
            " Use neuron_native, the default."
        )
    choices = (*_NATIVE, _HLO)
    raise OptionError(
        f"VLLM_NEURON_BACKEND={route!r} is not a compile route.{nearest(route, choices)} The choices are neuron_native"
        f" (the default), its alias neuron, and {_HLO} (deprecated)."
    )


def neuron_native_lite(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the neuron device: the backend function itself.

    Args:
        gm: the graph.
        example_inputs: its example arguments; meta tensors stand for neuron ones with `alias_meta_to_neuron`.
        options: see `compile.options.Options`.
        kwargs: none is known; one that is given is an error.

    Raises:
        OptionError: an unknown option or target.
        CompileError: the graph cannot become an executable; the text says why and where.
    """
    from . import backend, tracing
    from .options import Options

    if kwargs:
        raise OptionError(f"unknown argument '{next(iter(kwargs))}' of the backend {BACKEND_NAME}; it takes options=.")
    chosen = Options.parse(options)
    if chosen.alias_meta_to_neuron:
        example_inputs = backend.meta_to_neuron(example_inputs)

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return backend.compile(graph, inputs, options=options)

    return tracing.trace(gm, example_inputs, compiler, optional_passes=chosen.enable_fx_passes)
