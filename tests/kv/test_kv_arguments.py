# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of an agent, and a peer that is gone, are errors of the documented types."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from libtorch_neuronx_lite.kv import NHD, Agent, KvError, KvLayout, KvPeerError


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent("prefill-0") as made:
        made.register_kv([torch.zeros(4, 2, 1, 8, device="neuron") for _ in range(2)], KvLayout(NHD))
        yield made


def test_readers_are_a_list(agent: Agent) -> None:
    with pytest.raises(TypeError, match=r"readers=\['decode-0'\]"):
        agent.grant("request", [0], readers="decode-0")


@pytest.mark.parametrize("tokens", [(8, 0), (-1, 2)])
def test_tokens_are_a_range(agent: Agent, tokens: tuple[int, int]) -> None:
    with pytest.raises(KvError, match="0 <= begin <= end"):
        agent.grant("request", [0], readers=["decode-0"], tokens=tokens)


def test_a_read_from_a_closed_peer_is_a_peer_error(agent: Agent) -> None:
    with Agent("decode-0") as reader:
        reader.register_kv([torch.zeros(4, 2, 1, 8, device="neuron") for _ in range(2)], KvLayout(NHD))
        peer = reader.connect(agent.endpoint)
        agent.close()
        for _ in range(1000):
            if not peer.up:
                break
            time.sleep(0.01)
        with pytest.raises(KvPeerError, match="prefill-0"):
            peer.layout()
        with pytest.raises(KvPeerError, match="prefill-0"):
            peer.regions()
