"""Requests that wait in engines for an adapter: whose name it is, and what they are told.

An inventory says which names requests wait for (`requested`). The adapter that owns such a name
is woken: its pass sees where it is asked for. A name that no adapter of the pool owns is refused
at once, and one whose adapter cannot be served there when its pass has found out why.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from lorafleet.errors import LorafleetError
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.pool_planner import PoolPlanner
    from lorafleet_operator.transfer.links import EngineLink
    from lorafleet_operator.world import EngineView

_ANSWER_SECONDS: Final = 5.0
_LOG: Final = logging.getLogger(__name__)


class Requested:
    """Pods, as `<namespace>/<name>`, by the served names that requests wait for there."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}
        self._pods: dict[str, set[str]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    def note(self, pod: str, names: Iterable[str]) -> frozenset[str]:
        """Take what a pod's newest inventory says; return the names that are new in it."""
        now, before = frozenset(names), self._names.pop(pod, frozenset())
        if now:
            self._names[pod] = now
        for name in before - now:
            self._pods[name].discard(pod)
            if not self._pods[name]:
                del self._pods[name]
        for name in now - before:
            self._pods.setdefault(name, set()).add(pod)
        return now - before

    def pods(self, served_name: str) -> frozenset[str]:
        """Return where requests wait for the name."""
        return frozenset(self._pods.get(served_name, ()))

    def refuse(self, link: EngineLink, names: Iterable[pb.RefusedName]) -> None:
        """Let the requests that wait for these names on an engine fail; does not wait for that."""
        task = asyncio.create_task(_refuse(link, list(names)))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """Stop answering."""
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)


def owners(names: Iterable[str], planners: Iterable[PoolPlanner]) -> dict[str, str | None]:
    """Return the adapter that owns each name in one of the pools, None for those without."""
    known = list(planners)
    return {
        name: next(filter(None, (planner.owner(name) for planner in known)), None) for name in names
    }


def absent(
    facts: Facts, unmet: Mapping[str, str], waiting: Iterable[EngineView], *, retry: bool
) -> dict[str, str]:
    """Return, by pod UID, what requests for the adapter are told where it will not be served now.

    `unmet` says why the plan leaves it out on an engine, by pod name; `waiting` are the engines
    where requests wait, after the pass; `retry`: what failed is tried again soon, so that the
    requests may wait for that.
    """
    placed = facts.placed
    if retry or placed is None or placed.lost_name:
        return {}
    found = {}
    for view in waiting:
        if any(entry.published for entry in view.loaded(facts.key)):
            continue
        trouble = facts.troubles.get(view.uid) or facts.refusals.get(view.uid) or facts.rejection
        line = str(trouble or "")
        if facts.paused:
            line = "paused by annotation"
        elif not line and view.pod.name not in placed.pods:
            line = unmet.get(view.pod.name, "")
        if line:
            found[view.uid] = f"{facts.adapter.served_name} is not served here: {line}"
    return found


def answer(facts: Facts, fleet: Fleet, *, retry: bool) -> None:
    """Tell the requests that wait for the adapter where it will not be served."""
    pods = fleet.requested.pods(facts.adapter.served_name)
    if not pods or facts.pool is None:
        return
    planner = fleet.planner(facts.pool.key)
    there = [pod for pod in planner.members.values() if pod.key in pods]
    waiting = [engine_view(pod, fleet.links) for pod in there]
    why = planner.unmet(facts.key, {pod.name for pod in there})
    for uid, line in absent(facts, why, waiting, retry=retry).items():
        link = fleet.links.get(uid)
        if link is not None:
            name = pb.RefusedName(
                served_name=facts.adapter.served_name, message=line[:1024], exists=True
            )
            fleet.requested.refuse(link, [name])


async def _refuse(link: EngineLink, names: list[pb.RefusedName]) -> None:
    """A refusal that is lost comes again with the next inventory, or the deadline ends the wait."""
    try:
        await link.client.refuse(pb.RefuseNamesRequest(names=names), _ANSWER_SECONDS)
    except LorafleetError as error:
        _LOG.info("%s: requests were not answered: %s", link.endpoint.pod, error)
