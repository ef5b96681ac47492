"""How long planning takes, per adapter, from 100 to 10,000 adapters with 3 replicas each.

    python bench/fleet/placement.py [--engines 1000] [--sizes 100,1000,10000] [--json FILE]

A pure computation on one core: no engine, no API server. Columns, in microseconds per adapter:
cold     planning the whole fleet from nothing
pass     one adapter's pass when nothing has changed for it
change   one adapter that needs more, so that it is chosen again
churn    one adapter goes, one comes
death    each adapter of 1 in 10 engines that die at once
The last line compares the largest fleet with the smallest: 1.0 is flat.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Planner,
    Policy,
    planned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
COLUMNS = ("cold", "pass", "change", "churn", "death")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--policy", type=Policy, default=Policy.SPREAD)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    print(f"{options.engines} engines, 3 replicas, policy {options.policy}; us per adapter")
    print("adapters " + "".join(f"{name:>10}" for name in COLUMNS))
    rows = {}
    for size in sizes:
        rows[size] = measure(options.engines, size, options.policy)
        print(f"{size:8} " + "".join(f"{rows[size][name]:10.1f}" for name in COLUMNS))
    first, last = rows[sizes[0]], rows[sizes[-1]]
    ratios = {name: last[name] / first[name] for name in COLUMNS}
    print("ratio    " + "".join(f"{ratios[name]:10.2f}" for name in COLUMNS))
    if options.json:
        found = {"engines": options.engines, "us_per_adapter": rows, "ratio": ratios}
        text = json.dumps({"python": platform.python_version(), **found}, indent=1)
        options.json.write_text(text + "\n")


def measure(engines: int, adapters: int, policy: Policy) -> dict[str, float]:
    """Return microseconds per adapter for each column."""
    fleet = [engine(number) for number in range(engines)]
    demands = [adapter(number, policy) for number in range(adapters)]
    found = {"cold": seconds(lambda: planned(demands, fleet)) / adapters}
    planner = planned(demands, fleet)
    some = demands[:: max(1, adapters // 200)]
    found["pass"] = seconds(lambda: each(planner, some)) / len(some)
    larger = [replace(demand, size_bytes=4 * MIB) for demand in some]
    found["change"] = seconds(lambda: each(planner, larger)) / len(some)
    found["churn"] = seconds(lambda: churn(planner, some)) / len(some)
    dead = fleet[::10]
    hit = sum(
        any(name in e.chosen for name in (d.pod_name for d in dead))
        for e in planner.entries.values()
    )
    found["death"] = seconds(lambda: die(planner, dead)) / hit
    return {name: 1e6 * value for name, value in found.items()}


def engine(number: int) -> EngineSnapshot:
    return EngineSnapshot(
        pod_name=f"engine-{number}",
        node=f"node-{number // 8}",
        zone=f"zone-{number // 8 % 3}",
        base_models=("base",),
        max_lora_rank=64,
        max_loras=8,
        max_cpu_loras=64,
        arena_limit_bytes=1024 * MIB,
        arena_largest_free_bytes=1024 * MIB,
    )


def adapter(number: int, policy: Policy) -> AdapterDemand:
    return AdapterDemand(
        key=f"tenant-{number % 20}/adapter-{number}",
        base_model="base",
        size_bytes=(2 + 2 * (number % 4)) * MIB,
        rank=(8, 16, 64)[number % 3],
        policy=policy,
        replicas=3,
    )


def each(planner: Planner, demands: list[AdapterDemand]) -> None:
    for demand in demands:
        planner.set_adapter(demand)
        planner.settle()


def churn(planner: Planner, demands: list[AdapterDemand]) -> None:
    for demand in demands:
        planner.drop_adapter(demand.key)
        planner.set_adapter(replace(demand, key=f"{demand.key}-new"))
        planner.settle()


def die(planner: Planner, engines: list[EngineSnapshot]) -> None:
    for each_ in engines:
        planner.set_engine(replace(each_, health=EngineHealth.UNREACHABLE))
    planner.settle()


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
