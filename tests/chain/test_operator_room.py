"""Arenas without room, and content that several adapters share, through the whole chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]


@pytest.fixture
def chain(chain: Chain) -> Chain:
    chain.arena_bytes = 4 << 20  # two small adapters
    return chain


def test_an_update_without_room_says_so_and_goes_on_as_soon_as_there_is_some(chain: Chain) -> None:
    chain.start_engine("engine-0", 0)
    chain.start_operator()
    chain.pool()
    chain.adapter("one")
    chain.adapter("two", "d02-all-fp32")
    eventually(lambda: chain.ready("one") and chain.ready("two"))
    old = chain.status("one")["digest"]
    chain.put_source("one", "d09-rank-6")
    eventually(lambda: chain.condition("one", "Ready") == ("False", "StagingFull"))
    message = chain.full_condition("one", "Ready")["message"]
    assert "staging volume full: 4 MiB of 4 MiB used, need 2 MiB" in message
    assert message.endswith(f"{old[:19]} keeps serving {chain.namespace}/one")
    chain.adapter("three", "d11-rslora")
    eventually(lambda: chain.condition("three", "Ready") == ("False", "NoCapacity"))
    assert chain.ready("two")
    assert chain.answer("engine-0", f"{chain.namespace}/one") == old[7:19]
    chain.delete("loraadapters", "three")
    chain.delete("loraadapters", "two")
    eventually(lambda: chain.ready("one", old), 60)


def test_of_two_adapters_with_one_content_either_may_go(chain: Chain) -> None:
    chain.start_engine("engine-0", 0)
    chain.start_operator()
    chain.pool()
    for name in ("first", "second"):
        chain.adapter(name)
        eventually(lambda name=name: chain.ready(name))
    digest = chain.status("first")["digest"]
    assert chain.status("second")["digest"] == digest
    chain.delete("loraadapters", "first")
    eventually(lambda: not chain.exists("first"))
    assert chain.answer("engine-0", f"{chain.namespace}/second") == digest[7:19]
    assert chain.served("engine-0") == {f"{chain.namespace}/second"}
    chain.delete("loraadapters", "second")
    eventually(lambda: not chain.exists("second"))
    assert chain.served("engine-0") == set()
    eventually(lambda: chain.status("pool", "enginepools")["engines"][0]["arenaUsedBytes"] == 0)
