"""Real vLLM engines on the CPU, adapters of two tenants, constant requests, and random events.

    python bench/chaos/run.py --minutes 10 --seed 1 [--engines 3]

Events: apply, update, roll back, delete; engine, sidecar and operator killed; a sidecar cut off.
Every answer is compared with what stock vLLM says of each revision. Prints the events and counts,
and ends with 1 if an answer was of a wrong adapter or revision, if a request to an adapter that was
Ready and not touched failed, or if at the end names, arenas or slots are not what the manifests say.
A seed gives the same order of events; how far apart they take effect is the machine's.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from typing import TYPE_CHECKING

from accounts import problems
from events import TENANTS, Chaos
from fleet import running_fleet
from traffic import Routes, Traffic, digests_of, right_answers
from wishes import Wishes

if TYPE_CHECKING:
    from real_chain import RealChain

CONTENTS = 4
"""Of each tenant."""
PAUSE_SECONDS = (1.0, 5.0)
REST_SECONDS = 180


def watch(routes: Routes, wishes: Wishes, digests: dict[str, str], ended: threading.Event) -> None:
    """Keep the routes current and note which contents are Ready, until `ended`."""
    contents = {digest: content for content, digest in digests.items()}
    while not ended.wait(0.3):
        routes.look()
        for name, wish in list(wishes.now.items()):
            status = routes.statuses.get(name)
            if status is None:
                if wish.deleted:
                    wishes.forget(name)
                continue
            ready = {"type": "Ready", "status": "True"}.items()
            if not any(ready <= each.items() for each in status.get("conditions", [])):
                continue
            content = contents.get(status.get("digest", ""), "")
            wishes.ready(name, content, status.get("observedGeneration", 0))


def rest(routes: Routes, wishes: Wishes) -> bool:
    """Wait until every adapter is settled and every engine serves it."""
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        if all(
            not wish.deleted
            and wish.settled == len(wish.contents) - 1
            and len(routes.engines(name)) == len(routes.instances)
            for name, wish in list(wishes.now.items())
        ):
            return True
        time.sleep(0.5)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engines", type=int, default=3)
    wanted = parser.parse_args()
    names = [f"{tenant}{number}" for tenant in TENANTS for number in range(CONTENTS)]
    with running_fleet(wanted.engines) as chain:
        contents = {name: chain.make(name, seed=100 + at) for at, name in enumerate(names)}
        wishes = Wishes(right_answers(chain, "engine-0", contents))
        digests = digests_of(chain, contents)
        routes, ended = Routes(chain), threading.Event()
        chaos = Chaos(chain, wishes, routes, digests, random.Random(wanted.seed))
        traffic = Traffic(chain, wishes, routes, wanted.seed)
        watcher = threading.Thread(target=watch, args=(routes, wishes, digests, ended))
        watcher.start()
        traffic.start()
        pauses = random.Random(f"pauses {wanted.seed}")
        try:
            while time.monotonic() - chaos.began < wanted.minutes * 60:
                chaos.step()
                time.sleep(pauses.uniform(*PAUSE_SECONDS))
            chaos.say("no more events")
            chaos.settle(REST_SECONDS)
            rested = rest(routes, wishes)
            chaos.say("all is served" if rested else "NOT all is served")
        finally:
            traffic.stop()
            ended.set()
            watcher.join()
        last = {name: digests[wish.contents[-1][1]] for name, wish in wishes.now.items()}
        found = [] if rested else [f"status of {n}: {chain.status(n)}" for n in last]
        found += settled_problems(chain, last)
    for fault in traffic.faults:
        print(f"{fault.at - chaos.began:7.1f} s  {fault.what}: {fault.adapter} on {fault.engine}: "
              f"{fault.detail}")  # fmt: skip
    print(*found, sep="\n")
    print(", ".join(f"{count} {what}" for what, count in sorted(traffic.counts.items())))
    failed = bool(traffic.faults or found)
    print("FAILED" if failed else "passed: no wrong answer, no failed request, accounts exact")
    return failed


def settled_problems(chain: RealChain, wanted: dict[str, str]) -> list[str]:
    """Return the problems of the accounts that stay for some seconds: drains may be ending."""
    deadline = time.monotonic() + 40
    while (found := problems(chain, wanted)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


if __name__ == "__main__":
    sys.exit(main())
