# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that PyTorch can save and load with its own artifacts: graph, executable, and what its key is of.

What was saved is not taken at its word when it is loaded: the key is made again from what is installed now. Where it
differs, the executable is built again from the graph before the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .._log import get_logger
from .entry import Artifact
from .key import key_of, versions
from .miss import differences
from .platform import resolve_target
from .request import CompileRequest

_logger = get_logger(__name__)


@dataclass
class PortableGraph(OutputCode):
    """One compiled graph: called like what `backend.compile` returns, saved without its runtime half.

    Attributes:
        artifact: the executable with its metadata.
        module: the StableHLO that it was made of.
        compiler_args: the caller's, `--target` among them when it was given.
        name: of the graph.
        device_index: the core that it was compiled for; None for the current one.
        constants: tensors that every call passes, on the CPU.
    """

    artifact: Artifact
    module: bytes
    compiler_args: tuple[str, ...]
    name: str
    device_index: int | None
    constants: list[torch.Tensor]
    _run: Callable[[list[Any]], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the executable on a list of arguments, which is emptied."""
        assert self._run is not None
        return self._run(inputs)  # type: ignore[arg-type]  # a list: the call is boxed

    def prepare_for_serialization(self) -> None:
        """Part from what belongs to this process; PyTorch calls it on a copy."""
        self._run = None

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Make the graph callable; PyTorch calls it after loading, and after compiling."""
        if self._run is None:
            with unset_fake_temporarily():
                self._run = self._load()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing: there is no Triton code in it."""

    def _load(self) -> Callable[[list[Any]], Any]:
        from .backend import make_run

        artifact = self._current()
        return make_run(artifact, self.device_index, self.constants)

    def _current(self) -> Artifact:
        """Return the executable if it is what would be compiled here and now, else one that is."""
        from .backend import rebuild
        from .store import Store

        saved = self.artifact.metadata["key_parts"]
        target = resolve_target(self.compiler_args)
        parts = {**saved, "target": target, "versions": versions(target)}
        key = key_of(parts)
        if key == self.artifact.key:
            return self.artifact
        _logger.warning(
            "the saved graph '%s' was compiled under other conditions (%s): its executable is made anew",
            self.name, "; ".join(differences(saved, parts)),
        )  # fmt: skip
        found = Store.from_environment().find(key)
        return found if found is not None else rebuild(self.module, self.artifact.metadata, parts, self.name)


def portable(artifact: Artifact, request: CompileRequest, run: Callable[[list[Any]], Any]) -> PortableGraph:
    """Return the portable form of a graph that was just compiled, with its device and constants."""
    device = request.identity.device
    return PortableGraph(
        artifact=Artifact(artifact.key, artifact.metadata, artifact.neff),
        module=artifact.module(),
        compiler_args=request.options.compiler_args,
        name=request.name,
        device_index=device.index if device is not None else None,
        constants=[constant.cpu() for constant in request.identity.constants],
        _run=run,
    )
