# SPDX-License-Identifier: Apache-2.0
"""One case of the operator coverage: samples of one `op_db` operator in one dtype, compiled by one backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

SEED = 7
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
# Largest difference from CPU eager: relative, and absolute around zero. float32: sums in another order. bfloat16: two
# steps of its 8 bits of mantissa, for operators that round more than once.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Outcome:
    """What happened to one case.

    `passed`: every sample compiled whole and gave CPU eager's values, dtypes and shapes. `refused`: an error that names
    an operator. `untraced`: Dynamo has no graph of it, for any backend. `wrong`: compiled, but other values, or parts
    of it ran eagerly. `failed`: any other error.
    `inapplicable`: no sample of this dtype, or eager itself fails on it.
    """

    op: str
    dtype: str
    group: str
    outcome: str
    detail: str = ""

    def as_data(self) -> dict[str, str]:
        """The fields by name."""
        return asdict(self)


def operators() -> dict[str, Any]:
    """Every operator of PyTorch's own database, by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as database
    # Random operators are wrapped in a function that saves and sets the seed, which Dynamo does not trace.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # type: ignore[attr-defined]
    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in database.op_db}


def cases() -> Iterator[tuple[str, str]]:
    """(operator, dtype) of every case, in a fixed order."""
    for name, op in operators().items():
        supported = op.supported_dtypes("cpu")
        for dtype in DTYPES:
            if dtype in supported:
                yield name, str(dtype).removeprefix("torch.")


_LINALG = (
    "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "linalg", "logdet", "lu", "lu_solve", "lu_unpack",
    "matrix_exp", "ormqr", "pca_lowrank", "pinverse", "qr", "svd", "svd_lowrank", "symeig", "triangular_solve",
)  # fmt: skip


def _group(name: str, run: Callable[[], Any]) -> str:
    """linalg, fft, sparse, jiterator, data-dependent (shapes that only the values give), or core."""
    head = name.split(".")[0]
    if head in _LINALG:
        return "linalg"
    if head in ("fft", "stft", "istft"):
        return "fft"
    if "sparse" in name:
        return "sparse"
    if head.startswith("jiterator"):
        return "jiterator"
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            run()
    except (DataDependentOutputException, DynamicOutputShapeException):
        return "data-dependent"
    except Exception:
        return "core"  # what stands in its way shows itself when it is compiled
    return "core"


def _moved(value: Any, device: str) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), value)


def _difference(got: Any, want: Any, values: bool) -> str:
    """Return how `got` differs from eager's `want`; empty when it does not."""
    ours, theirs = pytree.tree_leaves(got), pytree.tree_leaves(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if values and a != b and not (a != a and b != b):
                return f"{a} instead of {b}"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        if values:
            tolerance = TOLERANCE.get(b.dtype, 0.0)
            try:
                torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance, equal_nan=True)
            except AssertionError as error:
                return " ".join(str(error).split())
    return ""


def run_case(name: str, dtype_name: str, backend: str, samples: int) -> Outcome:
    """Compile up to `samples` samples with `backend`, `neuron` or `inductor`, and compare each with CPU eager."""
    op, dtype = operators()[name], getattr(torch, dtype_name)
    device = "neuron:0" if backend == "neuron" else "cpu"
    group, seen = "core", 0
    for sample in _samples(op, dtype):
        if seen == samples:
            break
        arguments = (sample.input, sample.args, sample.kwargs)

        def run(arguments: Any = arguments) -> Any:
            input_, args, kwargs = arguments
            return op.op(input_, *args, **kwargs)

        group = _group(name, run)
        try:
            want, again = _seeded(run, SEED), _seeded(run, SEED + 1)
        except Exception:
            continue
        seen += 1
        outcome, detail = _compare(run, arguments, want, not _difference(again, want, True), backend, device)
        if outcome != "passed":
            return Outcome(name, dtype_name, group, outcome, detail[:400])
    return Outcome(name, dtype_name, group, "passed" if seen else "inapplicable")


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    from torch.testing._internal.common_utils import set_rng_seed

    set_rng_seed(SEED)
    try:
        yield from op.sample_inputs_func(op, "cpu", dtype, False)
    except Exception:
        return


def _seeded(run: Callable[[], Any], seed: int) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        return run()


def _compare(
    run: Callable[..., Any], arguments: Any, want: Any, deterministic: bool, backend: str, device: str
) -> tuple[str, str]:
    """Compile and run one sample; return the outcome and its detail."""
    from torch._dynamo.exc import InternalTorchDynamoError, Unsupported

    from libtorch_neuronx_lite import device as neuron
    from libtorch_neuronx_lite._errors import CompileError

    moved = _moved(arguments, device)
    input_, args, kwargs = moved
    if "device" in kwargs:
        kwargs = {**kwargs, "device": device}
    tensors, spec = pytree.tree_flatten((input_, args, kwargs))
    places = [i for i, leaf in enumerate(tensors) if isinstance(leaf, torch.Tensor)]

    def call(*inputs: torch.Tensor) -> Any:
        leaves = list(tensors)
        for place, tensor in zip(places, inputs, strict=True):
            leaves[place] = tensor
        return run(pytree.tree_unflatten(leaves, spec))

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=_backend(backend), fullgraph=True, dynamic=False)
    inputs = [tensors[i] for i in places]
    try:
        got = _seeded(lambda: compiled(*inputs), SEED)
    except (Unsupported, InternalTorchDynamoError) as error:
        return "untraced", " ".join(str(error).split())
    except Exception as error:
        cause = getattr(error, "inner_exception", None) or error.__cause__ or error
        text = " ".join(str(error).split())
        named = isinstance(cause, CompileError) or ("Error" in type(cause).__name__ and "aten." in text)
        return ("refused" if named else "failed"), f"{type(cause).__name__}: {text}"
    difference = _difference(got, want, deterministic)
    if not difference and backend == "neuron":
        before = neuron.fallback_total()
        _seeded(lambda: compiled(*inputs), SEED)  # the first call may prepare constants eagerly, later ones may not
        difference = f"{neuron.fallback_total() - before} operators ran eagerly" * (neuron.fallback_total() != before)
    return ("wrong", difference) if difference else ("passed", "")


def _backend(name: str) -> str:
    if name != "neuron":
        return name
    from libtorch_neuronx_lite.compile.native_backend import register

    return register()
