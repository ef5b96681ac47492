"""What one pass over an adapter with nothing to do costs the operator, from 100 to 10,000 adapters.

    python bench/fleet/pass_cost.py [--engines 1000] [--sizes 100,1000,10000]

Real planner, observation, decisions and report, over inventories as sidecars send them; no API
server, no connection, no source. Columns, in microseconds per pass:
observe  the engines that concern the adapter
place    its place in the plan of the pool, with one engine's new inventory since the last pass
decide   what to stage, load, publish and retire
report   its status
First, in milliseconds, the first pass after a start, which plans the whole pool; last, in milliseconds,
one pass over the pool and its status, of which ten engines have something new to say.
The last line compares the largest fleet with the smallest: 1.0 is flat.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from known_fleet import KnownFleet, Link, Links
from kubernetes.aio.client import ApiClient, Configuration
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator import rollout
from lorafleet_operator.facts import Facts
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.memory import Verdict
from lorafleet_operator.observe import observe
from lorafleet_operator.place import place
from lorafleet_operator.pool_pass import reconcile_pool
from lorafleet_operator.report import report
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import KnownAdapter, World
from operator_builders import DIGEST, FINGERPRINT, adapter, engine, loaded, pool, staged

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.pool_planner import PoolPlanner
    from lorafleet_operator.world import EngineView

COLUMNS = ("first", "observe", "place", "decide", "report", "pool")
SOON = "2026-01-01T00:00:00Z"
PASSES = 200
POOL_PASSES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--sizes", default="100,1000,10000")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    print(f"{options.engines} engines, 3 replicas; us per pass, the first and the pool in ms")
    print("adapters " + "".join(f"{name:>10}" for name in COLUMNS))
    rows = []
    for size in sizes:
        rows.append(asyncio.run(measure(options.engines, size)))
        print(f"{size:8} " + "".join(f"{value:10.1f}" for value in rows[-1]))
    ratios = [last / first for first, last in zip(rows[0], rows[-1], strict=True)]
    print("ratio    " + "".join(f"{value:10.2f}" for value in ratios))


async def measure(engines: int, adapters: int) -> list[float]:
    """Return milliseconds of the first pass, microseconds of each step of later ones, and milliseconds
    of a pass over the pool."""
    fleet, made, views = build(engines, adapters)
    took = [await one_pass(fleet, made[0])]
    for number in range(PASSES):
        tell(fleet, fleet.pools, views[number * 7 % engines], number)
        took.append(await one_pass(fleet, made[number * 13 % adapters]))
    later = [1e6 * sum(column) / PASSES for column in zip(*took[1:], strict=True)]
    return [1e3 * sum(took[0]), *later, 1e3 * await pool_seconds(fleet, views, made)]


def tell(fleet: KnownFleet, planner: PoolPlanner, view: EngineView, number: int) -> None:
    """Let an engine send an inventory with something new in it."""
    busy = pb.Inventory()
    busy.CopyFrom(view.inventory or busy)
    busy.sequence += number + 1
    busy.arena.used_bytes += number
    fleet.links[view.uid].view = replace(view, inventory=busy)
    planner.engine_changed(view.pod.name)


async def pool_seconds(
    known: KnownFleet, views: list[EngineView], adapters: list[LoRAAdapter]
) -> float:
    """Return the seconds of processor time of one pass over the pool."""
    there = replace(known.world, existing={"team-a": [each.key for each in adapters]})
    async with ApiClient(Configuration()) as api:
        fleet = Fleet(OperatorSettings(), there, api)
        fleet.links, fleet.holders = known.links, known.holders  # type: ignore[assignment]
        watched = there.pools["team-a"][0]
        status = await reconcile_pool(watched, fleet)
        watched = watched.model_copy(update={"status": status})
        began = time.process_time()
        for number in range(POOL_PASSES):
            for turn in range(10 * number, 10 * number + 10):
                tell(known, fleet.planner(watched.key), views[turn * 7 % len(views)], turn)
            assert (await reconcile_pool(watched, fleet)).to_api()["readyEngines"] == len(views)
        return (time.process_time() - began) / POOL_PASSES


async def one_pass(fleet: KnownFleet, resource: LoRAAdapter) -> list[float]:
    """Return the seconds of each step."""
    marks = [time.perf_counter()]
    facts = Facts(resource, SOON)
    await observe(facts, fleet)  # type: ignore[arg-type]
    marks.append(time.perf_counter())
    facts.fingerprint = FINGERPRINT
    facts.verdicts = {view.uid: Verdict(2 << 20, 8) for view in facts.engines}
    place(facts, fleet)  # type: ignore[arg-type]
    marks.append(time.perf_counter())
    wanted = facts.wanted()
    orders = (rollout.to_stage, rollout.to_load, rollout.to_publish, rollout.to_retire)
    assert not any(order(wanted) for order in orders), "nothing is to be done"
    marks.append(time.perf_counter())
    assert report(facts).status.ready_engines == 3
    marks.append(time.perf_counter())
    return [later - earlier for earlier, later in itertools.pairwise(marks)]


def build(engines: int, adapters: int) -> tuple[KnownFleet, list[LoRAAdapter], list[EngineView]]:
    """Return a fleet where every adapter is where it should be."""
    adapters_, carried = [], defaultdict[int, list[str]](list)
    spread = {"policy": "Spread", "replicas": 3}
    for number in range(adapters):
        places = [(3 * number + replica) % engines for replica in range(3)]
        there = [{"podName": f"e-{place_}"} for place_ in places]
        status = {"sizeBytes": 2 << 20, "rank": 8, "digest": DIGEST, "engines": there}
        made = adapter(f"a-{number}", status, placement=spread)
        adapters_.append(made)
        for place_ in places:
            carried[place_].append(made.key)
    arena = pb.ArenaUsage(limit_bytes=1 << 30, largest_free_bytes=1 << 30)
    views = []
    for number in range(engines):
        entries = [loaded(adapter=key, served_name=key) for key in carried[number]]
        made_ = engine(f"e-{number}", staged(), *entries, arena=arena, max_cpu_loras=64)
        views.append(replace(made_, profile=views[0].profile if views else made_.profile))
    world = World(
        {"team-a": [view.pod for view in views]},
        {"team-a": [pool()]},
        {"team-a/pool": [KnownAdapter.of(each, SOON) for each in adapters_]},
        {},
        set(),
    )
    fleet = KnownFleet(world, Links({view.uid: Link(view) for view in views}))
    for view in views:
        fleet.holders.note(view.uid, view.inventory or pb.Inventory())
    return fleet, adapters_, views


if __name__ == "__main__":
    main()
