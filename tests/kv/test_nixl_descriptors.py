# SPDX-License-Identifier: Apache-2.0
"""Descriptor lists of the NIXL facade against plain Python, and its installation."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libtorch_neuronx_lite.kv.nixl_compat import descriptors, errors, install, uninstall
from libtorch_neuronx_lite.kv.nixl_compat.descriptors import PreparedList, Regions, parse, runs_of

BASE = 1 << 40
REGIONS = Regions.of([(BASE + 8192, 4096, 7), (BASE, 4096, 3)])  # (address, bytes, index)


def rows() -> st.SearchStrategy[tuple[int, int, int, int, int]]:
    """A row inside one of the two regions: (address, bytes, device, stride, count)."""

    @st.composite
    def build(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
        region = draw(st.sampled_from([BASE, BASE + 8192]))
        size, count = draw(st.integers(1, 64)), draw(st.integers(1, 8))
        stride = draw(st.integers(size, 128))
        offset = draw(st.integers(0, 4096 - size - (count - 1) * stride))
        return region + offset, size, 0, stride, count

    return build()


@given(st.lists(rows(), min_size=1, max_size=8))
def test_descriptors_by_index_are_the_expanded_rows(table: list[tuple[int, int, int, int, int]]) -> None:
    prepared = PreparedList.make("peer", parse(np.array(table, np.uint64), "DRAM", (3, 5)), REGIONS)
    expanded = [
        (3 if address < BASE + 8192 else 7, (address + i * stride - BASE) % 8192, size)
        for address, size, _, stride, count in table
        for i in range(count)
    ]
    assert len(prepared) == len(expanded)
    order = np.random.default_rng(len(expanded)).permutation(len(expanded))
    region, offset, size = prepared.at(order)
    assert list(zip(region.tolist(), offset.tolist(), size.tolist(), strict=True)) == [expanded[i] for i in order]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_runs_join_neighbours_and_move_the_same_bytes(pairs: list[tuple[int, int]]) -> None:
    size = 16
    source = tuple(np.array([values], np.uint64).reshape(-1) for values in (
        [0 for _ in pairs], [a * size for a, _ in pairs], [size for _ in pairs]))  # fmt: skip
    target = tuple(np.array([values], np.uint64).reshape(-1) for values in (
        [1 for _ in pairs], [b * size for _, b in pairs], [size for _ in pairs]))  # fmt: skip
    runs, count = runs_of(source, target)  # type: ignore[arg-type]
    assert count == len(pairs)
    moved = [(int(a) + i, int(b) + i) for _, _, a, b, length, _, _, _ in runs.tolist() for i in range(length)]
    assert moved == [(a * size + i, b * size + i) for a, b in pairs for i in range(size)]
    neighbours = sum(b == (a[0] + 1, a[1] + 1) for a, b in itertools.pairwise(pairs))
    assert len(runs) == len(pairs) - neighbours


def test_sides_must_fit() -> None:
    one = parse([(BASE, 16, 0)], "DRAM", (3,))
    two = parse([(BASE, 32, 0)], "DRAM", (3,))
    sides = [PreparedList.make("", side, REGIONS).at([0]) for side in (one, two)]
    with pytest.raises(errors.nixlInvalidParamError, match="equally long"):
        runs_of(sides[0], sides[1])
    with pytest.raises(errors.nixlInvalidParamError, match="1 and 2 descriptors"):
        runs_of(sides[0], PreparedList.make("", one, REGIONS).at([0, 0]))


@pytest.mark.parametrize(
    "row",
    [
        (BASE - 1, 2, 0),
        (BASE + 4095, 2, 0),
        (BASE + 4096, 1, 0),
        (0, 1, 0),
        (BASE, 4096, 0, 4096, 2),
        (BASE, 1, 0, 2**40, 2),
    ],
)
def test_what_is_not_registered_is_not_found(row: tuple[int, ...]) -> None:
    with pytest.raises(errors.nixlNotFoundError, match="not registered at peer"):
        PreparedList.make("peer", parse(np.array([row], np.uint64), "DRAM", (3, 5)), REGIONS)


@pytest.mark.parametrize("row", [(BASE, 2**63, 0, 2**63, 3), (2**64 - 1, 1, 0, 1, 2), (BASE, 1, 0, 2**62, 2**62)])
def test_arithmetic_that_would_wrap_is_refused(row: tuple[int, ...]) -> None:
    with pytest.raises((errors.nixlInvalidParamError, errors.nixlNotFoundError)):
        PreparedList.make("peer", parse(np.array([row], np.uint64), "DRAM", (3, 5)), REGIONS)


def test_bad_indices_and_empty_rows() -> None:
    prepared = PreparedList.make("peer", parse([(BASE, 16, 0)], "DRAM", (3,)), REGIONS)
    for indices in ([1], [-1]):
        with pytest.raises(errors.nixlInvalidParamError, match="indices must be 0 to 0"):
            prepared.at(indices)
    with pytest.raises(errors.nixlInvalidParamError, match="no bytes"):
        PreparedList.make("peer", parse([(BASE, 0, 0)], "DRAM", (3,)), REGIONS)
    assert len(prepared.at([])[0]) == 0


def test_what_can_be_a_list() -> None:
    tensor = torch.zeros(4, 8)
    for descs in (tensor, [tensor], [(tensor.data_ptr(), 128, 0)], np.array([[tensor.data_ptr(), 128, 0]])):
        parsed = parse(descs, "DRAM", (3,))
        assert parsed.rows.tolist() == [[tensor.data_ptr(), 128, 0, 128, 1]]
        assert parsed.kind == "DRAM"
        assert parse(parsed, None, (3,)) is parsed
    assert len(parse([], "DRAM", (3,))) == 0
    with pytest.raises(errors.nixlInvalidParamError, match="mem_type must be given"):
        parse([(1, 2, 0)], None, (3,))
    with pytest.raises(errors.nixlNotSupportedError, match="FILE"):
        parse([(1, 2, 0)], "FILE", (3,))
    with pytest.raises(errors.nixlInvalidParamError, match="Nx3"):
        parse(np.zeros((2, 4)), "DRAM", (3,))
    with pytest.raises(errors.nixlInvalidParamError, match="contiguous"):
        parse(tensor[:, ::2], None, (3,))
    with pytest.raises(errors.nixlInvalidParamError, match="whole numbers"):
        parse([("a", "b", "c")], "DRAM", (3,))


def test_installation_is_on_request_and_can_be_undone() -> None:
    assert "nixl" not in sys.modules
    install()
    install()
    try:
        from nixl._api import nixl_agent
        from nixl._bindings import nixlRemoteDisconnectError, nixlXferTelemetry

        from libtorch_neuronx_lite.kv import nixl_compat

        assert nixl_agent is nixl_compat.nixl_agent
        assert nixlXferTelemetry is nixl_compat.nixlXferTelemetry
        assert nixlRemoteDisconnectError is errors.nixlRemoteDisconnectError
    finally:
        uninstall()
    assert "nixl" not in sys.modules
    sys.modules["nixl"] = descriptors
    try:
        with pytest.raises(RuntimeError, match="module nixl is already imported"):
            install()
    finally:
        del sys.modules["nixl"]


def test_importing_the_package_installs_nothing() -> None:
    code = "import sys, libtorch_neuronx_lite.kv.nixl_compat; print('nixl' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_the_seventeen_methods_are_there() -> None:
    from libtorch_neuronx_lite.kv.nixl_compat import nixl_agent

    methods = [
        "add_remote_agent",
        "check_remote_metadata",
        "check_xfer_state",
        "create_backend",
        "deregister_memory",
        "get_agent_metadata",
        "get_new_notifs",
        "get_reg_descs",
        "get_xfer_telemetry",
        "make_prepped_xfer",
        "prep_xfer_dlist",
        "register_memory",
        "release_dlist_handle",
        "release_xfer_handle",
        "remove_remote_agent",
        "send_notif",
        "transfer",
    ]
    assert len(methods) == 17
    assert [name for name in methods if not callable(getattr(nixl_agent, name, None))] == []
