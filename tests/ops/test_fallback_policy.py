# SPDX-License-Identifier: Apache-2.0
"""NEURON_LIBTORCH_EAGER_FALLBACK, the one warning per operator, and the counters."""

from __future__ import annotations

import warnings

import pytest
import torch

from fresh_process import FreshPython


def test_counters_name_operators_with_overloads() -> None:
    torch.neuron.reset_fallback_counts()
    x = torch.arange(4.0).to("neuron")
    assert torch.neuron.fallback_total() == 0  # copies and views compute nothing
    assert x.view(2, 2).t()[0].unfold(0, 2, 1).shape == (1, 2)
    assert torch.neuron.fallback_counts() == {}
    x.sin()
    x.sin()
    assert torch.neuron.fallback_counts() == {"aten::sin.out": 2}
    assert torch.neuron.fallback_total() == 2
    torch.neuron.reset_fallback_counts()
    assert torch.neuron.fallback_counts() == {}


def test_error_mode_names_the_operator_and_the_variable() -> None:
    x = torch.arange(4.0).to("neuron")
    torch.neuron.set_fallback_mode("error")
    with pytest.raises(NotImplementedError, match=r"aten::cos.out .*NEURON_LIBTORCH_EAGER_FALLBACK=error"):
        x.cos()
    assert x.cpu().tolist() == [0, 1, 2, 3]
    assert x[1].item() == 1


def test_warn_mode_warns_once_per_operator() -> None:
    x = torch.arange(4.0).to("neuron")
    torch.neuron.set_fallback_mode("warn")
    with pytest.warns(UserWarning, match="aten::acosh.out runs on the host CPU") as caught:
        x.acosh()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.acosh()


def test_an_unknown_mode_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="'loud'; choices: allow, warn, error"):
        torch.neuron.set_fallback_mode("loud")


CODE = """
    import torch, libtorch_neuronx_lite
    x = torch.ones(2).to("neuron")
    {body}
"""


def test_the_variable_is_read_at_first_use() -> None:
    python = FreshPython()
    python(CODE.format(body="assert (x + 1).tolist() == [2, 2]"), NEURON_LIBTORCH_EAGER_FALLBACK="allow")
    refused = python.run(CODE.format(body="x + 1"), NEURON_LIBTORCH_EAGER_FALLBACK="error")
    assert "aten::add.out has no neuron kernel" in refused.stderr
    unknown = python.run(CODE.format(body="x + 1"), NEURON_LIBTORCH_EAGER_FALLBACK="quiet")
    assert "NEURON_LIBTORCH_EAGER_FALLBACK is 'quiet'; choices: allow, warn, error" in unknown.stderr
    default = python.run(CODE.format(body="x + 1"), NEURON_LIBTORCH_EAGER_FALLBACK="")  # empty: as unset
    assert "UserWarning: aten::add.out runs on the host CPU" in default.stderr
