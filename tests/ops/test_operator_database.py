# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database, eager on neuron against eager on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import operator_sweep as sweep
import pytest
import torch
from operator_exceptions import NOT_ON_CPU, REFUSED, RESULT_ON_CPU, STEPS, UNINITIALIZED

OPERATORS = sweep.operators()
# Small groups keep pytest's own cost low and still let a run be split with -k.
GROUPS = [sorted(OPERATORS)[start : start + 25] for start in range(0, len(OPERATORS), 25)]
group = pytest.mark.parametrize("names", GROUPS, ids=[f"{names[0]}..{names[-1]}" for names in GROUPS])


VARIANTS = (sweep.check_inplace, sweep.check_out)


def _run(names: list[str], checks: tuple[Callable[..., bool], ...], dtypes_per_operator: int | None) -> None:
    failures = []
    for name in names:
        op = OPERATORS[name]
        for dtype in sweep.dtypes(op)[:dtypes_per_operator]:
            for check in checks:
                try:
                    check(name, op, dtype)
                except Exception as error:
                    failures.append(f"{name} {dtype} {check.__name__}: {type(error).__name__}: {str(error)[:400]}")
    assert not failures, "\n".join(failures)


def test_every_exception_names_an_operator_that_exists() -> None:
    assert len(OPERATORS) > 600
    known = set(OPERATORS)
    assert set(REFUSED) | RESULT_ON_CPU | UNINITIALIZED | set(STEPS) <= known
    assert not NOT_ON_CPU & known


@group
def test_every_operator_in_one_dtype(names: list[str]) -> None:
    _run(names, (sweep.check,), 1)


@pytest.mark.long
@group
def test_every_operator_in_every_dtype(names: list[str]) -> None:
    _run(names, (sweep.check,), None)


@pytest.mark.long
@group
def test_in_place_and_out_variants(names: list[str]) -> None:
    _run(names, VARIANTS, 1)


@pytest.mark.long
@group
@pytest.mark.usefixtures("staged")
def test_every_operator_with_staged_copies(names: list[str]) -> None:
    _run(names, (sweep.check, *VARIANTS), 1)


@pytest.mark.long
def test_gradients_of_every_differentiable_operator() -> None:
    """The backward of one float32 sample, against the CPU's."""
    failures = []
    for name, op in OPERATORS.items():
        if name in REFUSED or not op.supports_autograd or torch.float32 not in op.supported_backward_dtypes("cpu"):
            continue
        try:
            sweep.check_gradients(name, op)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:400]}")
    assert not failures, "\n".join(failures)
