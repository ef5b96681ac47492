"""Keeps the objects that lead requests to engines as they should be.

A pass says how its adapter is to be routed; which engines serve it is looked up here, after a pass
and after each change of an engine, a pod or the objects themselves: a pass may take minutes, while
it sends gigabytes, and an engine that dies meanwhile must not get requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
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

    from .endpoints import Endpoint, Intent
    from .objects import Json

_LOG: Final = logging.getLogger(__name__)
_GATHER_SECONDS: Final = 0.1
_AT_ONCE: Final = 8


class Router:
    """Services, slices and routes of all adapters that want them."""

    def __init__(
        self, owned: Owned, links: Links, holders: Holders, pods: Mapping[str, EnginePod]
    ) -> None:
        self.owned = owned
        self._links = links
        self._holders = holders
        self._pods = pods
        self._intents: dict[str, Intent] = {}
        self._terms: dict[str, term.Term] = {}
        self._named: defaultdict[str, set[str]] = defaultdict(set)  # pod UID -> adapters
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changed: set[str] = set()
        self._settling: asyncio.Task[None] | None = None

    async def show(self, intent: Intent) -> NotWritten | None:
        """Route an adapter from now on as `intent` says; return what could not be written."""
        self._intents[intent.key] = intent
        self._terms[intent.key] = term.current() or term.Term()
        return await self._settle(intent.key)

    async def withdraw(self, key: str, uid: str, routes: Iterable[Key] = ()) -> NotWritten | None:
        """Take away what the adapter has; `routes`: HTTPRoutes that it may have beside what is known."""
        self._intents.pop(key, None)
        self._terms.pop(key, None)
        async with self._locks[key]:
            gone = [*self.owned.of(uid), *routes]
            try:
                # The routes first: they must not lead to Services that are gone.
                for each in sorted(set(gone), key=lambda k: (k[0] != ROUTE, k)):
                    await self.owned.remove(each)
            except NotWritten as error:
                return error
        self._locks.pop(key, None)
        return None

    def concerns(self, adapters: Iterable[str], uid: str = "") -> None:
        """Look again at those of these adapters that are routed, and those that name the pod."""
        if not self._intents:
            return
        self._changed |= self._intents.keys() & {*adapters, *self._named.get(uid, ())}
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
            try:
                async with limit:
                    with self._terms[key].acting():
                        problem = await self._settle(key)
            except (KeyError, term.TermOver):  # withdrawn, or another operator's by now
                self._intents.pop(key, None)
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

    async def _settle(self, key: str) -> NotWritten | None:
        """Write what differs for one adapter; return what could not be."""
        async with self._locks[key]:
            intent = self._intents.get(key)
            if intent is None:
                return None
            try:
                await self._write(intent)
            except NotWritten as error:
                return error
        return None

    async def _write(self, intent: Intent) -> None:
        there = self.owned.of(intent.uid)
        slices = {role: _slices(there, service_name(role, intent.name)) for role in Role}
        before = {
            role: {u for uids in each.values() for u in uids} for role, each in slices.items()
        }
        groups = named(intent, self._backends(intent, before[Role.ADAPTER]), before)
        self._note_named(intent.key, before[Role.ADAPTER], groups[Role.ADAPTER])
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
        for key in sorted(there.keys() - wanted.keys(), key=lambda k: (k[0] != ROUTE, k)):
            await self.owned.remove(key)
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

    def _note_named(self, key: str, before: set[str], now: Iterable[Endpoint]) -> None:
        named_now = {each.uid for each in now}
        for uid in named_now:
            self._named[uid].add(key)
        for uid in before - named_now:
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
