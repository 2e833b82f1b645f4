# SPDX-License-Identifier: Apache-2.0
"""What makes two graphs one key, and what makes them two."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from eager_oracle import DEVICE
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import cache, key, optimization_level
from libtorch_neuronx_lite.compile.graph_hash import identify
from libtorch_neuronx_lite.compile.native_backend import neuron_native_lite
from libtorch_neuronx_lite.compile.options import Options
from libtorch_neuronx_lite.compile.request import CompileRequest, request_for
from libtorch_neuronx_lite.compile.source_digest import source_digest
from libtorch_neuronx_lite.fx_passes.constants import argument_tensors, take_constants

aten = torch.ops.aten


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """The requests of all graphs that a test compiles."""
    from libtorch_neuronx_lite.compile import backend

    seen: list[CompileRequest] = []

    def recorded(gm: fx.GraphModule, options: Options) -> CompileRequest:
        seen.append(request_for(gm, options))
        return seen[-1]

    monkeypatch.setattr(backend, "request_for", recorded)
    return seen


def _key(requests: list[CompileRequest], function: Callable[..., Any], *args: Any, **options: Any) -> str:
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=neuron_native_lite, dynamic=False, options=options)(*args)
    return requests[-1].key


def _graph(build: Callable[[fx.Graph], Any]) -> fx.GraphModule:
    """A graph made by hand, its nodes with the values that tracing would give them."""
    graph = fx.Graph()
    graph.output(build(graph))
    gm = fx.GraphModule({}, graph)
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = torch.empty(4, 4, device="meta")
        elif node.op == "call_function":
            values[node] = node.target(*fx.map_arg(node.args, values.get), **fx.map_arg(node.kwargs, values.get))
        node.meta["val"] = values.get(node)
    return gm


def test_key_ignores_how_a_graph_is_spelt() -> None:
    def one(graph: fx.Graph) -> Any:
        x, y = graph.placeholder("x"), graph.placeholder("y")
        return (graph.call_function(aten.add.Tensor, (x, y)),)

    def two(graph: fx.Graph) -> Any:
        first, second = graph.placeholder("arg0_1"), graph.placeholder("arg1_1")
        return [graph.call_function(aten.add.Tensor, (first,), {"alpha": 1, "other": second})]

    def other(graph: fx.Graph) -> Any:
        x, y = graph.placeholder("x"), graph.placeholder("y")
        return (graph.call_function(aten.add.Tensor, (x, y), {"alpha": 2}),)

    def swapped(graph: fx.Graph) -> Any:
        x, y = graph.placeholder("x"), graph.placeholder("y")
        return (graph.call_function(aten.add.Tensor, (y, x)),)

    assert identify(_graph(one)).digest == identify(_graph(two)).digest
    assert len({identify(_graph(build)).digest for build in (one, other, swapped)}) == 3


def test_key_ignores_names_in_the_users_code(requests: list[CompileRequest]) -> None:
    x = torch.ones(4, device=DEVICE)

    def first(argument: torch.Tensor) -> torch.Tensor:
        doubled = argument * 2
        return doubled + 1

    assert _key(requests, first, x) == _key(requests, lambda other: other * 2 + 1, x)


def test_key_covers_shapes_dtypes_strides_and_aliases(requests: list[CompileRequest]) -> None:
    square = torch.ones(4, 4, device=DEVICE)
    keys = [
        _key(requests, lambda x: x + 1, square),
        _key(requests, lambda x: x + 1, square.t()[:, ::2]),
        _key(requests, lambda x: x + 1, square[0]),
        _key(requests, lambda x: x + 1, square.to(torch.int32)),
        _key(requests, lambda x: x.add_(1), square),
        _key(requests, lambda x: (x + 1, x.t()), square),
        _key(requests, lambda x: x + 1, torch.ones(4, 4)),
        _key(requests, lambda x: x + 1.5, square),
    ]
    assert len(set(keys)) == len(keys)


def test_the_constants_of_a_graph_are_known_without_its_passes() -> None:
    module = torch.nn.Module()
    module.register_buffer("large", torch.arange(2048.0))
    module.register_buffer("small", torch.ones(2))
    module.register_buffer("other", torch.zeros(64, 64))
    graph = fx.Graph()
    with FakeTensorMode() as mode:
        graph.placeholder("x").meta["val"] = torch.empty(2048)
    for name in ("other", "small", "large", "other"):
        graph.get_attr(name).meta["val"] = mode.from_tensor(getattr(module, name))
    nodes = [node for node in graph.nodes if node.op == "get_attr"]
    graph.output(tuple(nodes)).meta["val"] = None
    gm = fx.GraphModule(module, graph)
    known = argument_tensors(gm)
    assert [tensor.shape for tensor in known] == [(64, 64), (2048,)]
    taken = take_constants(gm)
    assert all(a is b for a, b in zip(known, taken, strict=True))


def test_key_covers_small_stored_tensors_and_not_large_ones(requests: list[CompileRequest]) -> None:
    x = torch.ones(3, device=DEVICE)

    def function(value: torch.Tensor) -> Callable[..., Any]:
        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.tensor(value.tolist(), device=x.device)

        return Model()

    small = [_key(requests, function(torch.tensor(v)), x) for v in ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0])]
    assert small[0] == small[2] != small[1]


def test_key_covers_options_target_and_versions(
    requests: list[CompileRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, device=DEVICE)
    plain = _key(requests, lambda x: x * 3, x)
    named = _key(requests, lambda x: x * 3, x, model_name="other")
    with_argument = _key(requests, lambda x: x * 3, x, compiler_args="--auto-cast=none")
    assert len({plain, named, with_argument}) == 3
    parts = requests[0].parts
    for changed in ({"target": "trn2"}, {"versions": {**parts["versions"], "torch-mlir": "1"}}):
        assert key.key_of({**parts, **changed}) != plain


def test_two_environments_do_not_answer_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_now() -> str:
        return key.key_of(key.key_parts("g", target="host", compiler_args=(), label="m"))

    here = of_now()
    monkeypatch.setattr(key, "package_version", lambda: "0.1.0+another")
    assert of_now() != here
    monkeypatch.setenv("NEURON_LIBTORCH_NEURONX_CC_VERSION", "2.20")
    chip = key.key_parts("g", target="trn2", compiler_args=(), label="m")
    assert chip["versions"]["neuronx-cc"] == "2.20"
    assert "neuronx-cc" not in key.key_parts("g", target="host", compiler_args=(), label="m")["versions"]


@pytest.mark.parametrize(
    "args",
    [["-O1"], ["--optimization-level", "1"], ["--optimization-level=1"], ["--optlevel=1"], ["-O", "1"], ["-O3", "-O1"]],
)
def test_every_spelling_of_the_level_is_one_argument(args: list[str]) -> None:
    assert optimization_level.canonical([*args, "--lnc=2"], "trn2") == ["-O1", "--lnc=2"]
    assert optimization_level.canonical(["--lnc=2"], "trn2") == ["-O2", "--lnc=2"]
    assert optimization_level.canonical(args, "host") == []
    with pytest.raises(_errors.OptionError, match="'9'"):
        optimization_level.canonical(["-O9"], "trn2")


def test_a_component_of_the_callers_own_is_part_of_every_key(requests: list[CompileRequest]) -> None:
    x = torch.ones(2, device=DEVICE)
    plain = _key(requests, lambda x: x * 5, x)
    try:
        cache.add_key_component("kernels", lambda gm, options: "first edition")
        first = _key(requests, lambda x: x * 5, x)
        cache.add_key_component("kernels", lambda gm, options: "second edition")
        second = _key(requests, lambda x: x * 5, x)
        assert len({plain, first, second}) == 3
        assert requests[-1].parts["extra"] == {"kernels": "second edition"}
        cache.add_key_component("kernels", lambda gm, options: 3)  # type: ignore[arg-type,return-value]
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="'kernels' returned 3"):
            _key(requests, lambda x: x * 5, x)
    finally:
        cache.remove_key_component("kernels")
    assert _key(requests, lambda x: x * 5, x) == plain


def _module(source: str, name: str = "user_kernels") -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


_KERNEL = """
SCALE = 2
def helper(x):
    return x * SCALE
def kernel(x):
    "Says what it does."
    return helper(x) + 1  # a comment
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("a comment", "another comment", True),
        ("Says what", "Tells what", True),
        ("\ndef kernel", "\n\n\ndef kernel", True),
        ("+ 1", "+ 2", False),
        ("x * SCALE", "x / SCALE", False),
        ("SCALE = 2", "SCALE = 3", False),
    ],
)
def test_an_edited_kernel_is_another_digest(old: str, new: str, same: bool) -> None:
    before = source_digest(_module(_KERNEL).kernel)
    after = source_digest(_module(_KERNEL.replace(old, new)).kernel)
    assert (before == after) is same


def test_a_kernels_closure_and_modules_count() -> None:
    def make(factor: int, inner: Callable[[int], int]) -> Callable[[int], int]:
        def kernel(x: int) -> int:
            return inner(x) * factor

        return kernel

    digests = {source_digest(make(f, i)) for f in (1, 2) for i in (lambda x: x, lambda x: x + 1)}
    assert len(digests) == 4

    library = _module("def tile(x):\n    return x\n", "library")
    edited = _module("def tile(x):\n    return -x\n", "library")
    source = "def kernel(x):\n    return library.tile(x)\n"
    modules = [_module(source), _module(source)]
    vars(modules[0])["library"], vars(modules[1])["library"] = library, edited
    assert source_digest(modules[0].kernel) != source_digest(modules[1].kernel)

    class Kernel:
        def __init__(self, tile: int) -> None:
            self.tile = tile

        def __call__(self, x: int) -> int:
            return x + self.tile

    assert source_digest(Kernel(1)) != source_digest(Kernel(2))
    assert source_digest(Kernel(1)) == source_digest(Kernel(1))


@pytest.fixture
def operator() -> Iterator[Callable[[str], Any]]:
    """Defines the operator `cachetest::scaled` by a kernel's source."""
    libraries: list[Any] = []

    def define(source: str) -> Any:
        if libraries:
            libraries.pop()._destroy()
        kernel = _module(source).kernel
        made = torch.library.custom_op("cachetest::scaled", kernel, mutates_args=(), schema="(Tensor x) -> Tensor")
        libraries.append(made._lib)
        return torch.ops.cachetest.scaled.default

    yield define
    if libraries:
        libraries.pop()._destroy()


def test_key_covers_the_source_of_a_custom_operator(operator: Callable[[str], Any]) -> None:
    def digest(source: str) -> str:
        overload = operator(source)
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(overload, (x,)),))
        for node in graph.nodes:
            node.meta["val"] = torch.empty(2, device="meta")
        return identify(fx.GraphModule({}, graph)).digest

    first = digest(_KERNEL)
    assert digest(_KERNEL.replace("x * SCALE", "x - SCALE")) != first
    assert digest(_KERNEL) == first


class _Opaque:
    pass


class _Described:
    def __init__(self, edition: int) -> None:
        self.edition = edition

    def __neuron_cache_key__(self) -> str:
        return f"edition {self.edition}"


def test_an_argument_without_a_canonical_form_is_refused() -> None:
    def digest(value: Any) -> str:
        graph = fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(2, device="meta")
        node = graph.call_function(aten.add.Tensor, (x, value))
        node.meta["val"] = torch.empty(2, device="meta")
        graph.output((node,))
        gm = fx.GraphModule({}, fx.Graph())
        gm._graph = graph  # no code is generated for it: the argument has no spelling
        return identify(gm).digest

    with pytest.raises(_errors.CompileError, match=r"node 'add_tensor'.*__neuron_cache_key__"):
        digest(_Opaque())
    assert digest(_Described(1)) == digest(_Described(1)) != digest(_Described(2))
