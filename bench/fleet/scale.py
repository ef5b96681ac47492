"""A large fleet on a real API server: how long, how many writes, how much memory and time of a core.

    python bench/fleet/scale.py [--engines 100] [--adapters 1000] [--churn-seconds 120] [--save]
    python bench/fleet/scale.py --engines 1000 --adapters 10000 --churn-seconds 180 --save

Operator, etcd and kube-apiserver are real processes; the engines are simulated in this one
(tests/simulated_engine.py), with an address each, and their pods are objects that nobody runs.
Phases, each until every adapter is Ready and is really served by three living engines in the
revision that was last applied:
cold     all adapters exist, the operator is started
warm     adapters applied one after the other on the quiet fleet: apply to Ready
churn    1 % of the adapters a minute: half of them new revisions, a quarter new, a quarter deleted
loss     a tenth of the engines and their pods go at once
restart  the operator is killed and started: until it has looked at everything
idle     nothing happens, but each source is looked at once a minute
With `--unpolled` nobody looks at a source again: what bringing an adapter up costs, without looks at
those that are up already, of which a large fleet's longer cold phase has more. Saved beside `cold`.
A line each 15 s says how far it is. `--save` puts the run into bench/fleet/results/scale.json, phase
by phase; bench/fleet/plot.py draws what is there. The whole is bounded by `--minutes`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "hack")]

import httpx
import psutil
import yaml
from kube_rest import KubeRest
from localcluster import LocalCluster
from localstack import LocalStack, Operator
from simulated_engine import EXTENT_BYTES, Behaviour
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "scale.json"
IDLE_SECONDS = 62
"""A little more than the default between two looks at a source."""
ROOM = 1.6
"""Arena and adapters: how many times what each engine gets on average fits."""


class Meter:
    """The operator's processor time and memory, and the API server's writes, phase by phase."""

    def __init__(self, fleet: SimulatedFleet, keep: Callable[[dict[str, Any]], None]) -> None:
        self.fleet = fleet
        self.keep = keep
        self.process: psutil.Process | None = None
        self.operator: Operator | None = None
        self.peak = self.rss = 0
        self.phases: dict[str, dict[str, Any]] = {}

    async def watch(self) -> None:
        """Note the most memory, and tell every 15 s how far it is: a stall is to be seen."""
        began = said = time.monotonic()
        while True:
            if self.process is not None and self.process.is_running():
                self.rss = self.process.memory_info().rss
                self.peak = max(self.peak, self.rss)
            if time.monotonic() - said >= 15:
                said = time.monotonic()
                print(
                    f"  {said - began:5.0f} s  {len(self.fleet.unsettled())} of "
                    f"{len(self.fleet.adapters)} not as wanted, {self.rss >> 20} MiB, "
                    f"{self._processor():.0f} s of processor, {dict(await self.errors())}",
                    flush=True,
                )
            await asyncio.sleep(0.25)

    async def errors(self) -> Counter[str]:
        """Return how many passes of this operator have ended in an error, by reason."""
        found: Counter[str] = Counter()
        if self.operator is None:
            return found
        for line in await series(self.operator, "lorafleet_operator_reconcile_errors_total"):
            reason = line.split('reason="')[1].split('"')[0]
            found[reason] = int(float(line.split()[-1]))
        return found

    async def begin(self) -> None:
        self._began = time.monotonic()
        self._cpu = self._processor()
        self._writes = await self.fleet.writes()
        self.peak = 0

    async def end(self, phase: str, changes: int, **more: Any) -> None:
        seconds = time.monotonic() - self._began
        cpu = self._processor() - self._cpu
        writes = await self._quiet() - self._writes
        touched = sum(count for kind, count in writes.items() if kind != "pool status")
        found = {
            "seconds": round(seconds, 2),
            "changes": changes,
            "operator_cpu_seconds": round(cpu, 2),
            "operator_cores": round(cpu / seconds, 3),
            "operator_peak_rss_mib": round(self.peak / 2**20, 1),
            "operator_rss_mib": round(self.rss / 2**20, 1),
            "errors": dict(await self.errors()),
            "writes": dict(writes),
            "writes_per_change": round(touched / changes, 2) if changes else None,
            **more,
        }
        self.phases[phase] = found
        print(f"{phase:8}", json.dumps(found), flush=True)
        self.keep(self.phases)

    async def _quiet(self) -> Counter[str]:
        """Return the counts once nothing follows: Events come after the status that they tell of."""
        before = None
        while before != (now := await self.fleet.writes()):
            before = now
            await asyncio.sleep(1.0)
        return now

    def follow(self, operator: Operator) -> None:
        self.operator = operator
        self.process = psutil.Process(operator.process.pid)

    def _processor(self) -> float:
        if self.process is None or not self.process.is_running():
            return 0.0
        times = self.process.cpu_times()
        return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--adapters", type=int, default=200)
    parser.add_argument("--churn-seconds", type=float, default=60)
    parser.add_argument("--warm", type=int, default=50, help="adapters applied one by one")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each phase")
    parser.add_argument("--minutes", type=float, default=25, help="for all of it")
    parser.add_argument("--phases", default="cold,warm,churn,loss,restart,idle")
    parser.add_argument(
        "--unpolled", action="store_true", help="only cold, with pollIntervalSeconds 0"
    )
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="scale-", dir="/dev/shm") as folder,
        LocalCluster(Path(folder) / "cluster", quiet=True) as cluster,
        LocalStack(Path(folder)) as stack,
    ):
        with KubeRest(cluster.kubeconfig) as rest:
            for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
                rest.install_crd(yaml.safe_load(path.read_text()))
        asyncio.run(bounded(options, cluster, stack, Path(folder)))


def save(run: dict[str, Any]) -> None:
    """Put a run in the place of an earlier one of its size; phases that it lacks are kept."""
    RESULTS.parent.mkdir(exist_ok=True)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    sizes = {(each["engines"], each["adapters"]): each for each in before["runs"]}
    size = (run["engines"], run["adapters"])
    phases = {**sizes.get(size, run)["phases"], **run["phases"]}
    sizes[size] = {**run, "phases": phases}
    runs = sorted(sizes.values(), key=lambda each: each["adapters"])
    RESULTS.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


async def bounded(
    options: argparse.Namespace, cluster: LocalCluster, stack: LocalStack, folder: Path
) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(options.minutes * 60):
            await measure(options, cluster, stack, folder)
    except BaseException:
        for log in sorted(stack.logs.glob("*operator*.log")):
            print(f"the end of {log.name}:", *log.read_text().splitlines()[-20:], sep="\n")
        raise


async def measure(
    options: argparse.Namespace, cluster: LocalCluster, stack: LocalStack, folder: Path
) -> None:
    engines, adapters, limit = options.engines, options.adapters, options.limit
    phases = [] if options.unpolled else options.phases.split(",")
    poll = 0 if options.unpolled else 60
    each = -(-3 * adapters // engines)
    behaviour = Behaviour(arena_bytes=int(each * ROOM + 4) * EXTENT_BYTES, load_seconds=0.02)
    fleet = SimulatedFleet(
        cluster.kubeconfig,
        folder,
        "fleet",
        engines=engines,
        behaviour=behaviour,
        poll_seconds=poll,
    )

    def start() -> Operator:
        settings = {"LORAFLEET_NAMESPACES": "fleet", "LORAFLEET_VOLUME_ROOT": str(fleet.root)}
        operator = stack.start_operator(cluster.kubeconfig, **settings)
        meter.follow(operator)
        return operator

    def keep(phases: dict[str, Any]) -> None:
        run = {
            "engines": engines,
            "adapters": adapters,
            "replicas": 3,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "phases": phases,
            "arena_bytes": behaviour.arena_bytes,
            "fullest_arena_bytes": fleet.books.fullest_bytes,
            "over_capacity": len(fleet.books.overruns),
            "stagings": fleet.books.stagings,
            "loads": fleet.books.loads,
        }
        if options.save:
            save(run)
        else:
            print("        ", {key: value for key, value in run.items() if key != "phases"})

    meter = Meter(fleet, keep)
    began = time.monotonic()
    async with fleet:
        watching = asyncio.create_task(meter.watch())
        print(f"{engines} engines started in {time.monotonic() - began:.0f} s", flush=True)
        await asyncio.gather(*(fleet.apply(f"a-{number}") for number in range(adapters)))
        print(f"{adapters} adapters made by {time.monotonic() - began:.0f} s", flush=True)

        await meter.begin()
        operator = start()
        await fleet.settled(limit, poll=0.5)
        await meter.end("unpolled" if options.unpolled else "cold", adapters)
        gc.freeze()  # pauses of this process would count as latencies of the operator

        if "warm" in phases:
            await asyncio.sleep(5)
            fleet.seconds.clear()
            await meter.begin()
            for number in range(options.warm):
                await fleet.apply(f"w-{number}")
                await fleet.settled(limit)
            await meter.end("warm", options.warm, **latencies(fleet.seconds))
        if "churn" in phases:
            await asyncio.sleep(2)
            fleet.seconds.clear()
            await meter.begin()
            changes = await churn(fleet, adapters, options.churn_seconds)
            await fleet.settled(limit)
            await meter.end("churn", changes, **latencies(fleet.seconds))
        if "loss" in phases:
            await asyncio.sleep(2)
            lost = sorted(fleet.engines)[::10][: max(1, engines // 10)]
            hit = {e.served_name for n in lost for e in fleet.engines[n].loaded.values()}
            await meter.begin()
            await fleet.lose_engines(lost)
            await fleet.settled(limit, poll=0.5)
            await meter.end("loss", len(hit), engines=len(lost))
        if "restart" in phases:
            await asyncio.sleep(2)
            await meter.begin()
            operator.process.kill()
            operator = start()
            meter._cpu = 0.0
            await passes(operator, len(fleet.adapters), limit)
            await fleet.settled(limit, poll=0.5)
            await meter.end("restart", 0)
        if "idle" in phases:
            await asyncio.sleep(2)
            await meter.begin()
            await asyncio.sleep(IDLE_SECONDS)
            await meter.end("idle", 0)
        watching.cancel()


async def churn(fleet: SimulatedFleet, adapters: int, seconds: float) -> int:
    """Change 1 % of the adapters a minute, evenly; return how many changes that was."""
    total = max(4, round(adapters * 0.01 * seconds / 60))
    done = Counter[str]()
    names = sorted(fleet.adapters)
    began = time.monotonic()
    for number in range(total):
        await asyncio.sleep(max(0.0, began + number * seconds / total - time.monotonic()))
        name = names[number * 7919 % len(names)]
        match number % 4:
            case 1:
                await fleet.apply(f"c-{number}")
            case 3 if name in fleet.adapters:
                await fleet.delete(name)
            case _ if name in fleet.adapters:
                await fleet.apply(name, fleet.adapters[name].revision + 1)
        done["changes"] += 1
    return done["changes"]


async def passes(operator: Operator, wanted: int, limit: float) -> None:
    """Return when the operator has ended as many passes over adapters."""
    deadline = time.monotonic() + limit
    name = "lorafleet_operator_reconcile_duration_seconds_count"
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        start = f'{name}{{kind="LoRAAdapter"}}'
        for line in await series(operator, name):
            if line.startswith(start) and float(line.split()[-1]) >= wanted:
                return
    raise TimeoutError(f"the operator has not looked at {wanted} adapters in {limit} s")


async def series(operator: Operator, name: str) -> list[str]:
    """Return the lines of one metric, none while the operator does not listen yet."""
    async with httpx.AsyncClient(timeout=60) as client:
        try:
            answer = await client.get(operator.metrics_url, params={"name[]": name})
        except httpx.TransportError:
            return []
    return [line for line in answer.text.splitlines() if line.startswith(name)]


def latencies(seconds: list[float]) -> dict[str, Any]:
    """Return the distribution of apply to Ready, in seconds."""
    ordered = sorted(seconds)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    named = {"p50": cuts[49], "p99": cuts[98], "max": ordered[-1]}
    return {"ready_seconds": {key: round(value, 3) for key, value in named.items()}}


if __name__ == "__main__":
    main()
