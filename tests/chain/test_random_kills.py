"""Operator, sidecars and engines die by `kill -9` at random points while adapters come, change and go."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from processes import listens
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]

ENGINES = ("engine-0", "engine-1")
CASES = ("d01-plain-bf16", "d02-all-fp32", "d06-rank-and-alpha-pattern", "d11-rslora")
NAMES = ("a", "b", "c")
SEEDS = [int(seed) for seed in os.environ.get("LORAFLEET_KILL_SEEDS", "1 2").split()]
"""More by hand: each takes half a minute."""
SECONDS = 90


class Killer:
    """Changes adapters and kills processes, in an order that the seed draws."""

    def __init__(self, chain: Chain, seed: int) -> None:
        self.chain = chain
        self.draw = random.Random(seed)
        self.log: list[str] = []
        self.there: set[str] = set()

    def change(self) -> None:
        name, case = self.draw.choice(NAMES), self.draw.choice(CASES)
        if name not in self.there:
            eventually(lambda: not self.chain.exists(name), SECONDS, f"{name} does not go")
            self.chain.adapter(name, case)
            self.there.add(name)
            self.log.append(f"apply {name} {case}")
        elif self.draw.random() < 0.3:
            self.chain.delete("loraadapters", name)
            self.there.remove(name)
            self.log.append(f"delete {name}")
        else:
            self.chain.put_source(name, case)
            self.log.append(f"update {name} {case}")

    def kill(self) -> None:
        which = self.draw.choice(("operator", "sidecar", "engine", "pod"))
        engine = self.draw.choice(ENGINES)
        self.log.append(f"kill {which} {engine}")
        chain = self.chain
        if which == "operator":
            assert chain.operator is not None
            chain.operator.process.kill()
            chain.start_operator()
            return
        if which in ("engine", "pod"):
            chain.engines[engine].process.kill()
        if which in ("sidecar", "pod"):
            chain.sidecars[engine].process.kill()
        if which in ("engine", "pod"):
            self.start_engine(engine)
        if which in ("sidecar", "pod"):
            chain.start_sidecar(engine)

    def start_engine(self, name: str) -> None:
        """Start the fake engine again as a kubelet would: the same command, at the same port."""
        process = self.chain.engines[name].process
        again = type(process).start(name, process.popen.args, process.log)  # type: ignore[arg-type]
        process.popen = again.popen
        port = int(self.chain.engines[name].url.rpartition(":")[2])
        process.wait_until(lambda: listens("127.0.0.1", port), SECONDS)

    def wait_a_moment(self) -> None:
        """Let a random part of what is under way happen: by events of the fleet, not by a clock."""
        loads = sum(map(self.chain.loads, ENGINES))
        more = self.draw.choice((0, 0, 1, 2))
        try:
            eventually(lambda: sum(map(self.chain.loads, ENGINES)) >= loads + more, 2.0)
        except AssertionError:
            return  # it had nothing to load


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_asked_for_last_is_served_whoever_was_killed(chain: Chain, seed: int) -> None:
    for index, name in enumerate(ENGINES):
        chain.start_engine(name, index)
    chain.pool()
    chain.start_operator()
    killer = Killer(chain, seed)
    for _ in range(10):
        for _ in range(killer.draw.randrange(1, 3)):
            killer.change()
        killer.wait_a_moment()
        killer.kill()

    def settled() -> bool:
        found = {each["metadata"]["name"] for each in chain.adapters()}
        if found != killer.there or not all(map(chain.ready, found)):
            return False
        names = {f"{chain.namespace}/{name}" for name in found}
        return all(chain.served(engine) == names for engine in ENGINES)

    eventually(
        settled, SECONDS, f"after {killer.log}: {[each.get('status') for each in chain.adapters()]}"
    )
    for name in killer.there:
        digest = chain.status(name)["digest"]
        for engine in ENGINES:
            assert chain.answer(engine, f"{chain.namespace}/{name}") == digest[7:19], killer.log
