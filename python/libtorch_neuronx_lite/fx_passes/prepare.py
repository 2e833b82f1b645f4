# SPDX-License-Identifier: Apache-2.0
"""The order of the passes: from an AOTAutograd inference graph to one that holds only tensors, values and results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from .collectives import World, take_collectives
from .constants import hide_uint8_constants, separate_literals, take_constants
from .device import drop_devices, graph_device
from .dtype_check import check_dtypes
from .empty_tensors import remove_empty
from .inputs import take_inputs
from .mutation import take_mutations
from .negative_indices import wrap_negative_indices
from .pooling import find_places
from .results import Results, alias_info, plan_results
from .rng import add_seed
from .scalar_reductions import give_scalars_a_dimension
from .scalars import make_operands
from .shape_check import check_shapes


@dataclass
class PreparedGraph:
    """A graph ready to be lowered, and how a call's arguments and results map to the executable's.

    Attributes:
        gm: `gm.graph` is what counts, its generated code is stale; placeholders are the
            executable's inputs, in order; the output node lists its outputs.
        device: the neuron device of the graph, or None when every tensor in it is on the CPU.
        arguments: for each input (the seed excepted) the index of the argument; indices from `argument_count` on are
            `constants`.
        argument_count: how many arguments a call has.
        constants: tensors that every call passes after its arguments.
        cpu_arguments: indices of arguments that live on the CPU and are moved at call time.
        results: how results are made; its `aliases` and `plan` speak of argument indices.
        has_rng_seed: the last input is the seed, i64[2] = (seed, offset).
        world: the processes that its collectives join; None without collectives.
    """

    gm: fx.GraphModule
    device: torch.device | None
    arguments: list[int]
    argument_count: int
    constants: list[torch.Tensor]
    cpu_arguments: set[int]
    results: Results
    has_rng_seed: bool
    world: World | None = None

    def input_aliases(self) -> dict[int, int]:
        """Return the io_map: output index -> input index of the executable."""
        position = {argument: i for i, argument in enumerate(self.arguments)}
        return {output: position[argument] for output, argument in self.results.aliases.items()}


def prepare(gm: fx.GraphModule) -> PreparedGraph:
    """Run every pass on the graph, in place.

    Args:
        gm: what AOTAutograd hands an inference compiler, traced with concrete sizes.

    Raises:
        CompileError: the graph does something that an executable cannot; the text names the node and the line.
    """
    argument_count = sum(node.op == "placeholder" for node in gm.graph.nodes)
    returned = next(node for node in reversed(gm.graph.nodes) if node.op == "output").args[0]
    infos = alias_info(len(returned) if isinstance(returned, (list, tuple)) else 1, argument_count)
    world = take_collectives(gm)
    check_shapes(gm)
    check_dtypes(gm)
    device = graph_device(gm)
    results = plan_results(gm, take_mutations(gm), infos)
    constants = take_constants(gm)
    remove_empty(gm)
    gm.graph.eliminate_dead_code()
    find_places(gm)
    wrap_negative_indices(gm)
    give_scalars_a_dimension(gm)
    has_rng_seed = add_seed(gm)
    drop_devices(gm)
    make_operands(gm)
    hide_uint8_constants(gm)

    gm.graph.eliminate_dead_code()
    separate_literals(gm)
    arguments, cpu_arguments = take_inputs(gm, set(results.aliases.values()))
    if has_rng_seed:
        arguments.pop()
    # The output node is the executable's order from here on; earlier passes may have replaced its nodes.
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    results.outputs = list(output.args[0])
    return PreparedGraph(
        gm=gm,
        device=device,
        arguments=arguments,
        argument_count=argument_count,
        constants=constants,
        cpu_arguments={i for i in cpu_arguments if i < argument_count},
        results=results,
        has_rng_seed=has_rng_seed,
        world=world,
    )
