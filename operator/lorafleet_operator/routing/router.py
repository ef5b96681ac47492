"""Keeps the objects that lead requests to engines as they should be.

A pass says how its adapter is to be routed; which engines serve it is looked up here, after a pass
and after each change of an engine, a pod or the objects themselves: a pass may take minutes, while
it sends gigabytes, and an engine that dies meanwhile must not get requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lorafleet_operator import term
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.cluster.owned import ROUTE, SERVICE, SLICE, NotWritten
from lorafleet_operator.world import engine_view

from .endpoints import Backend, named, sliced, weights
from .names import Role, service_name
from .objects import adapter_service, endpoint_slice, http_route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lorafleet_operator.cluster.owned import Key, Owned
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.holders import Holders
    from lorafleet_operator.transfer.links import Links

    from .endpoints import Intent
    from .objects import Json

_LOG: Final = logging.getLogger(__name__)
_GATHER_SECONDS: Final = 0.1
_AT_ONCE: Final = 8


@dataclass(eq=False)
class _Shown:
    """One adapter that is routed."""

    intent: Intent
    term: term.Term
    """In which the pass ran that said so."""
    named: frozenset[str] = frozenset()
    """Pods (UIDs) that its Service names."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Router:
    """Services, slices and routes of all adapters that want them."""

    def __init__(
        self, owned: Owned, links: Links, holders: Holders, pods: Mapping[str, EnginePod]
    ) -> None:
        self.owned = owned
        self._links = links
        self._holders = holders
        self._pods = pods
        self._shown: dict[str, _Shown] = {}
        self._named: defaultdict[str, set[str]] = defaultdict(set)  # pod UID -> adapters
        self._changed: set[str] = set()
        self._settling: asyncio.Task[None] | None = None

    async def show(self, intent: Intent, gone: Iterable[Key] = ()) -> NotWritten | None:
        """Route an adapter from now on as `intent` says; return what could not be written.

        `gone`: HTTPRoutes that it may have from before.
        """
        shown = self._shown.setdefault(intent.key, _Shown(intent, term.Term()))
        shown.intent, shown.term = intent, term.current() or term.Term()
        return await self._settle(shown, gone)

    async def withdraw(self, key: str, uid: str, routes: Iterable[Key] = ()) -> NotWritten | None:
        """Take away what the adapter has; `routes`: HTTPRoutes that it may have beside what is known."""
        shown = self._shown.get(key)
        self.forget(key, uid)
        async with shown.lock if shown else nullcontext():
            try:
                await self._remove({*self.owned.of(uid), *routes})
            except NotWritten as error:
                return error
        return None

    def forget(self, key: str, uid: str) -> None:
        """Keep nothing of the adapter up to date any more."""
        shown = self._shown.get(key)
        if shown is not None and shown.intent.uid == uid:
            self._note_named(shown, frozenset())
            del self._shown[key]

    def concerns(self, adapters: Iterable[str], uid: str = "") -> None:
        """Look again at those of these adapters that are routed, and those that name the pod."""
        if not self._shown:
            return
        self._changed |= self._shown.keys() & {*adapters, *self._named.get(uid, ())}
        if self._changed and self._settling is None:
            self._settling = asyncio.create_task(self._settle_changed(), name="routes")

    async def close(self) -> None:
        """End what runs beside the passes."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)

    async def _settle_changed(self) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def settle(key: str) -> None:
            async with limit:
                shown = self._shown.get(key)
                if shown is None:
                    return
                try:
                    with shown.term.acting():
                        problem = await self._settle(shown)
                except term.TermOver:
                    if shown.term.left() <= 0:  # no pass of a later term has shown it meanwhile
                        self.forget(key, shown.intent.uid)
                    return
            if problem is not None:
                _LOG.warning("%s: %s: %s", key, problem.reason, problem)

        try:
            while self._changed:
                await asyncio.sleep(_GATHER_SECONDS)
                keys, self._changed = self._changed, set()
                await asyncio.gather(*map(settle, keys))
        finally:
            self._settling = None

    async def _settle(self, shown: _Shown, gone: Iterable[Key] = ()) -> NotWritten | None:
        """Write what differs for one adapter; return what could not be."""
        async with shown.lock:
            if self._shown.get(shown.intent.key) is not shown:
                return None  # withdrawn
            try:
                await self._remove(gone)
                await self._write(shown)
            except NotWritten as error:
                return error
        return None

    async def _remove(self, keys: Iterable[Key]) -> None:
        """Delete these objects, the routes first: they must not lead to Services that are gone."""
        for key in sorted(keys, key=lambda k: (k[0] != ROUTE, k)):
            await self.owned.remove(key)

    async def _write(self, shown: _Shown) -> None:
        intent = shown.intent
        there = self.owned.of(intent.uid)
        slices = {role: _slices(there, service_name(role, intent.name)) for role in Role}
        before = {
            role: {u for uids in each.values() for u in uids} for role, each in slices.items()
        }
        groups = named(intent, self._backends(intent, before[Role.ADAPTER]), before)
        self._note_named(shown, frozenset(each.uid for each in groups[Role.ADAPTER]))
        wanted: dict[Key, Json] = {}
        last: list[Json] = []  # slices that lose engines: once the route leads elsewhere
        for role, endpoints in groups.items():
            service = service_name(role, intent.name)
            wanted[SERVICE, intent.namespace, service] = adapter_service(intent, role)
            for name, part in sliced(service, endpoints, slices[role]).items():
                body = endpoint_slice(intent, role, name, part)
                wanted[SLICE, intent.namespace, name] = body
                if intent.http_route and slices[role].get(name, set()) - {e.uid for e in part}:
                    last.append(body)
        for body in wanted.values():
            if body not in last:
                await self.owned.put(body)
        missing = False
        if intent.http_route is not None:
            missing = not await self.owned.has_routes(asyncio.get_running_loop().time())
            if not missing:
                body = http_route(intent, weights(intent, groups))
                wanted[ROUTE, intent.namespace, body["metadata"]["name"]] = body
                await self.owned.put(body)
        for body in last:
            await self.owned.put(body)
        await self._remove(there.keys() - wanted.keys())
        if missing:
            text = "the cluster has no HTTPRoute of gateway.networking.k8s.io/v1"
            raise NotWritten(Reason.GATEWAY_API_MISSING, text)

    def _backends(self, intent: Intent, before: set[str]) -> list[Backend]:
        """Return the engines that have the adapter, and those that are named now."""
        found = []
        for uid in {*self._holders.loaded_on(intent.key), *before}:
            pod = self._pods.get(uid)
            if pod is None:
                continue
            view = engine_view(pod, self._links)
            serving = (
                each.digest
                for each in view.loaded(intent.key)
                if each.published and not each.draining and each.served_name == intent.served_name
            )
            heard = not view.problem and view.inventory is not None
            digest = next(serving, "") if view.takes_orders or not heard else ""
            found.append(Backend(pod, heard, digest))
        return found

    def _note_named(self, shown: _Shown, now: frozenset[str]) -> None:
        key, before = shown.intent.key, shown.named
        shown.named = now
        for uid in now - before:
            self._named[uid].add(key)
        for uid in before - now:
            self._named[uid].discard(key)
            if not self._named[uid]:
                del self._named[uid]


def _slices(there: Mapping[Key, Mapping[str, object]], service: str) -> dict[str, set[str]]:
    """Return the pods (UIDs) that each slice of a Service names."""
    found: dict[str, set[str]] = {}
    for (kind, _, name), body in there.items():
        if kind == SLICE and name.startswith(f"{service}."):
            endpoints = body.get("endpoints") or []
            assert isinstance(endpoints, list)
            found[name] = {(each.get("targetRef") or {}).get("uid", "") for each in endpoints}
    return found
