"""The loop over the leases: what is told when shards come and go, and an API server that is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet_operator import metrics
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.lease import Me, Record, shard_of
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.tenure import Tenure
from waiting import until

if TYPE_CHECKING:
    import pytest

POOL = "team-a/pool"
SECONDS = 2.0
"""Of a lease: a machine that stalls for longer than a renewal may be late must not fail the tests."""


class Shelf:
    """The API server's leases, in memory."""

    def __init__(self) -> None:
        self.leases: dict[int, Record] = {}
        self.writes = 0
        self.away = False

    async def all(self) -> list[Record]:
        await self._answer()
        return list(self.leases.values())

    async def write(self, record: Record) -> Record | None:
        await self._answer()
        known = self.leases.get(record.shard)
        if record.version != (known.version if known else ""):
            return None
        self.writes += 1
        self.leases[record.shard] = replace(record, version=str(self.writes))
        return self.leases[record.shard]

    async def close(self) -> None:
        return

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise NoAnswer("nobody is there")


def tenure(shelf: Shelf, told: list[set[int]], name: str = "me", shards: int = 1) -> Tenure:
    return Tenure(shelf, Me(name, shards, SECONDS), told.append)  # type: ignore[arg-type]


async def test_a_lost_api_server_ends_the_term_and_its_return_begins_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf, told = Shelf(), list[set[int]]()
    mine = tenure(shelf, told)
    assert mine.term(POOL) is None
    mine.start()
    await until(lambda: mine.term(POOL) is not None)
    first = mine.term(POOL)
    assert first is not None
    assert (told, str(mine)) == ([{0}], "shards held by me: 0 of 1")
    assert metrics.SHARDS_HELD._value.get() == 1
    shelf.away = True
    await until(lambda: len(told) == 2)
    assert mine.term(POOL) is None
    assert first.left() < 0
    assert str(mine) == "shards held by me: none of 1"
    assert metrics.SHARDS_HELD._value.get() == 0
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "cannot tell who holds which shard: nobody is there"
    ], "said once"
    shelf.away = False
    await until(lambda: mine.term(POOL) is not None)
    assert mine.term(POOL) is not first
    assert first.left() < 0, "what was begun before is not gone on with"
    await mine.close()
    assert told == [{0}] * 4
    assert shelf.leases[0].holder == ""


async def test_without_a_namespace_for_leases_an_operator_is_alone() -> None:
    assert Tenure.of(OperatorSettings(), print) is None
    assert metrics.SHARDS_HELD._value.get() == 1
    settings = OperatorSettings(lease_namespace="operators", identity="pod-1", shards=4)
    found = Tenure.of(settings, print)
    assert str(found) == "shards held by pod-1: none of 4"
    assert found is not None
    await found.close()
    assert metrics.SHARDS_HELD._value.get() == 0


async def test_renewals_are_few_and_one_who_stands_by_writes_nothing() -> None:
    shelf = Shelf()
    mine, other = tenure(shelf, []), tenure(shelf, [], "other")
    mine.start()
    await until(lambda: mine.held == [0])
    other.start()
    before, stamp = shelf.writes, shelf.leases[0].renewed
    term = mine.term(POOL)
    stamps = set[str]()
    while len(stamps) < 3:
        stamps.add(shelf.leases[0].renewed)
        await asyncio.sleep(0.01)
    assert shelf.writes - before == len(stamps - {stamp}), "a write for each renewal and no other"
    assert mine.term(POOL) is term
    assert other.held == []
    await other.close()
    assert shelf.leases[0].holder == "me"
    await mine.close()


async def test_a_holder_that_is_taken_from_by_hand_lets_go() -> None:
    shelf, told = Shelf(), list[set[int]]()
    mine = tenure(shelf, told, shards=2)
    mine.start()
    await until(lambda: mine.held == [0, 1])
    shard = shard_of(POOL, 2)
    record = shelf.leases[shard]
    shelf.leases[shard] = replace(record, holder="somebody", version="x", seconds=60)
    await until(lambda: mine.held == [1 - shard])
    assert mine.term(POOL) is None
    await mine.close()
    assert shelf.leases[shard].holder == "somebody"
