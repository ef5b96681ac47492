"""Drains of more than the pool can do without: of all its engines at once, of all that have an adapter,
and such that are called off."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from gated_fleet import GatedFleet
from localstack import LocalStack
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from localcluster import LocalCluster

DRAIN, SECONDS = "lorafleet.dev/drain", 60
ENGINES = [f"engine-{number}" for number in range(3)]
NAMES = [f"a-{number}" for number in range(6)]


class Drained(GatedFleet):
    """Three engines with the gate; six adapters with two replicas each, Ready."""

    def start_operator(self, stack: LocalStack, kubeconfig: Path) -> None:
        self._start = partial(
            stack.start_operator,
            kubeconfig,
            LORAFLEET_NAMESPACES=self.namespace,
            LORAFLEET_VOLUME_ROOT=str(self.root),
            LORAFLEET_RESYNC_SECONDS="3600",
        )
        self._operator = self._start()

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[None]:
        """What is done in the block the operator sees all at once: it is another one after."""
        self._operator.process.kill()
        yield
        self._operator = self._start()


@pytest.fixture
async def fleet(cluster: LocalCluster, namespace: str, tmp_path: Path) -> AsyncIterator[Drained]:
    made = Drained(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=Behaviour())
    with LocalStack(tmp_path) as stack:
        async with made:
            await asyncio.gather(*(made.apply(name) for name in NAMES))
            await asyncio.gather(*(made.add(name) for name in ENGINES))
            made.start_operator(stack, cluster.kubeconfig)
            await made.settled(SECONDS)
            await made.until(lambda: all_say(made, "Warm"), SECONDS)
            yield made


def all_say(fleet: Drained, reason: str) -> bool:
    return all(fleet.reasons(name)[-1:] == [reason] for name in ENGINES)


def served(fleet: Drained) -> dict[str, frozenset[str]]:
    return {name: fleet.served_by(name) for name in fleet.engines}


def placed(fleet: Drained, name: str) -> str:
    conditions = fleet.adapters[name].status.get("conditions") or ()
    return next((each["message"] for each in conditions if each["type"] == "Placed"), "")


async def test_a_drain_of_all_engines_at_once_ends_nothing_and_may_be_called_off(
    fleet: Drained,
) -> None:
    before, loads = served(fleet), fleet.books.loads
    async with fleet.at_once():
        for name in ENGINES:
            await fleet.label(name, DRAIN, "true")
    await fleet.until(lambda: all_say(fleet, "Draining"), SECONDS)
    await fleet.until(lambda: all("is being drained" in placed(fleet, n) for n in NAMES), SECONDS)
    assert served(fleet) == before
    assert all(each.status == "True" for each in fleet.said if each.reason == "Draining")
    async with fleet.at_once():
        for name in ENGINES:
            await fleet.label(name, DRAIN, None)
    await fleet.until(lambda: all_say(fleet, "Warm"), SECONDS)
    await fleet.until(lambda: not any("drained" in placed(fleet, n) for n in NAMES), SECONDS)
    await fleet.settled(SECONDS)
    assert served(fleet) == before
    assert (fleet.books.loads, fleet.books.unloads) == (loads, 0), "nothing was moved"
    assert "Drained" not in {each.reason for each in fleet.said}


async def test_all_engines_of_an_adapter_go_one_by_one_as_others_take_over(
    fleet: Drained,
) -> None:
    """Two of three engines are drained: the third is the only one that may have their adapters."""
    for name in ENGINES[:2]:
        await fleet.label(name, DRAIN, "true")
    await fleet.until(lambda: len(fleet.served_by(ENGINES[2])) == len(NAMES), SECONDS)
    unloads = fleet.books.unloads
    await fleet.until(
        lambda: all(fleet.reasons(n)[-1:] in (["Drained"], ["Draining"]) for n in ENGINES[:2]),
        SECONDS,
    )
    for each in fleet.said:
        if each.reason == "Drained":
            assert each.served <= fleet.served_by(ENGINES[2])
    await fleet.add("engine-3")
    await fleet.until(
        lambda: all(fleet.reasons(n)[-1:] == ["Drained"] for n in ENGINES[:2]), SECONDS
    )
    await fleet.settled_on({ENGINES[2], "engine-3"}, SECONDS)
    assert fleet.books.unloads == unloads, "what was sent to them a moment ago is still answered"
    for name in ENGINES[:2]:
        await fleet.end(name)
    await fleet.settled(SECONDS)


async def test_an_eviction_of_all_pods_at_once_is_made_good_by_those_that_come(
    fleet: Drained,
) -> None:
    before = served(fleet)
    async with fleet.at_once():
        await asyncio.gather(*(fleet.evict(name) for name in ENGINES))
    await fleet.until(lambda: all_say(fleet, "Deleting"), SECONDS)
    assert served(fleet) == before, "they answer until they end"
    await fleet.until(
        lambda: all(fleet.adapters[name].status["readyEngines"] == 0 for name in NAMES), SECONDS
    )
    new = {f"new-{number}" for number in range(3)}
    await asyncio.gather(*(fleet.add(name) for name in new))
    await fleet.settled_on(new, SECONDS)
    for name in ENGINES:
        await fleet.end(name)
    await fleet.settled(SECONDS)
    await fleet.until(lambda: all(fleet.reasons(n)[-1:] == ["Warm"] for n in new), SECONDS)
