"""What the watches bring: kept, and told to whom it concerns.

There are lists, at the start and after each gap of a watch, and events between them. No pass
begins before every list has been read: whatever an engine serves beside that is an orphan.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from sys import intern
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import ValidationError

from lorafleet_operator.api import names
from lorafleet_operator.api.v1alpha1 import AdapterGrant, EnginePool, LoRAAdapter
from lorafleet_operator.cluster import finalizer
from lorafleet_operator.cluster.bodies import version_of
from lorafleet_operator.cluster.owned import SERVICE, SLICE
from lorafleet_operator.cluster.reads import engine_pod
from lorafleet_operator.fleet import pool_loop
from lorafleet_operator.world import KnownAdapter, World

if TYPE_CHECKING:
    from lorafleet_operator.api.meta import ApiModel
    from lorafleet_operator.cluster.lists import Page
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.rounds import Rounds

_LOG: Final = logging.getLogger(__name__)
PODS: Final = "pods"
_ROUTES: Final = {"services": SERVICE, "endpointslices": SLICE}
NAMESPACES: Final = "namespaces"
NODES: Final = "nodes"
"""Cordoned ones alone: others are not asked for."""
_KINDS: Final = (PODS, names.POOL_PLURAL, names.ADAPTER_PLURAL, names.GRANT_PLURAL, *_ROUTES)
_OF_ROUTES: Final = ("uid", "namespace", "name", "resourceVersion", "ownerReferences")
_NONE: Final[dict[str, Any]] = {}

T = TypeVar("T")


class Grouped(Mapping[str, Collection[T]], Generic[T]):
    """Things of objects, by a key that several objects share; told by object."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, T]] = {}
        self._group_of: dict[str, str] = {}

    def __getitem__(self, group: str) -> Collection[T]:
        return self._groups[group].values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, uid: str, group: str, thing: T) -> None:
        """Keep the object's thing, in place of one before."""
        if self._group_of.get(uid, group) != group:
            self.drop(uid)
        self._group_of[uid] = group
        self._groups.setdefault(group, {})[uid] = thing

    def drop(self, uid: str) -> T | None:
        """Forget and return the object's thing."""
        group = self._group_of.pop(uid, None)
        if group is None:
            return None
        thing = self._groups[group].pop(uid)
        if not self._groups[group]:
            del self._groups[group]
        return thing


class Watched:
    """All objects of the kinds that the operator follows.

    namespaces: those that are watched one by one, none for the whole cluster.
    """

    def __init__(self, namespaces: Collection[str]) -> None:
        self._by_namespace = bool(namespaces)
        self._pods: Grouped[EnginePod] = Grouped()
        self._pools: Grouped[EnginePool] = Grouped()
        self._adapters: Grouped[KnownAdapter] = Grouped()
        self._existing: Grouped[str] = Grouped()
        self._routes: Grouped[dict[str, Any]] = Grouped()
        self._living: set[str] = set()
        self._grants: Grouped[AdapterGrant] = Grouped()
        self._namespaces: dict[str, dict[str, str]] = {}  # labels by name
        self._namespace_names: dict[str, str] = {}  # by UID
        self._cordoned: dict[str, str] = {}  # names of nodes by UID
        self.world = World(
            self._pods,
            self._pools,
            self._adapters,
            self._existing,
            self._living,
            self._grants,
            self._namespaces,
        )
        self._versions: dict[tuple[str, str], dict[str, int]] = {
            (plural, namespace): {} for plural in _KINDS for namespace in namespaces or ("",)
        }
        if not namespaces:  # a Role may not read them
            self._versions[NAMESPACES, ""] = {}
            self._versions[NODES, ""] = {}
        self._missing = set(self._versions)  # lists that have not been read yet
        self._pages: dict[tuple[str, str], set[str]] = {}  # UIDs of a list that is being read
        self._listed: dict[tuple[str, str], int] = {}  # resourceVersion of each list

    def serve(self, fleet: Fleet, *, adapters: Rounds, pools: Rounds) -> None:
        """Tell this fleet and these rounds; nothing may be told before that."""
        self._fleet, self._adapter_rounds, self._pool_rounds = fleet, adapters, pools
        fleet.lists_missing = True

    @property
    def complete(self) -> bool:
        """Whether every list has been read."""
        return not self._missing

    def listed(self, page: Page) -> None:
        """Take a page of a list; what the whole list lacks is gone."""
        place = (page.plural, page.namespace)
        if place not in self._versions:
            return
        self._fleet.alive(listed=place in self._missing)
        uids = self._pages.setdefault(place, set())
        if page.first:
            uids.clear()
        for body in page.items:
            uids.add(body["metadata"]["uid"])
            self._put(place, body)
        if not page.last:
            return
        for uid in self._versions[place].keys() - self._pages.pop(place):
            self._lose(place, uid)
        self._listed[place] = page.version
        if place in self._missing:
            self._missing.remove(place)
            if self.complete:
                self._fleet.lists_missing = False
                self._fleet.sync_links()
                self._pool_rounds.start()
                self._adapter_rounds.start()

    def heard(self, plural: str, body: dict[str, Any], *, gone: bool) -> None:
        """Take an event. One that is older than a list since then tells nothing."""
        self._fleet.alive()
        metadata = body["metadata"]
        place = (plural, metadata["namespace"] if self._by_namespace else "")
        known = metadata["uid"] in self._versions[place]
        if gone:
            if known:
                self._fleet.bodies.answered(body)  # it may say since when it was being deleted
                self._lose(place, metadata["uid"])
        elif known or version_of(body) > self._listed.get(place, 0):
            self._put(place, body)

    def _put(self, place: tuple[str, str], body: dict[str, Any]) -> None:
        uid, version, versions = body["metadata"]["uid"], version_of(body), self._versions[place]
        if version <= versions.get(uid, 0):
            return
        new = uid not in versions
        versions[uid] = version
        if place[0] == PODS:
            self._put_pod(uid, body)
        elif place[0] == names.POOL_PLURAL:
            self._put_pool(uid, body)
        elif place[0] == names.ADAPTER_PLURAL:
            self._put_adapter(uid, body, new=new)
        elif place[0] == names.GRANT_PLURAL:
            self._put_grant(uid, body)
        elif place[0] == NAMESPACES:
            self._put_namespace(uid, body)
        elif place[0] == NODES:
            self._cordoned[uid] = body["metadata"]["name"]
            self._mark_pods_of(body["metadata"]["name"])
        else:
            self._put_route(uid, {**body, "kind": _ROUTES[place[0]]})

    def _lose(self, place: tuple[str, str], uid: str) -> None:
        del self._versions[place][uid]
        if place[0] in _ROUTES:
            route = self._routes.drop(uid)
            if route is not None:
                self._route_changed(route, gone=True)
            return
        if place[0] == NAMESPACES:
            self._lose_namespace(uid)
            return
        if place[0] == NODES:
            self._mark_pods_of(self._cordoned.pop(uid))
            return
        if place[0] == names.GRANT_PLURAL:
            grant = self._grants.drop(uid)
            if grant is not None and self.complete:
                self._fleet.grants_changed(grant.metadata.namespace)
            return
        if place[0] == PODS:
            pod = self._pods.drop(uid)
            if pod is not None and self.complete:
                self._fleet.pod_changed(pod, gone=True)
            return
        self._living.discard(uid)
        self._fleet.seen.forget(uid)
        if place[0] == names.POOL_PLURAL:
            pool = self._pools.drop(uid)
            self._pool_rounds.cut(uid)
            if pool is not None and self.complete:
                self._fleet.sync_links()
                self._fleet.wake_pool(pool.key)
            return
        key = self._existing.drop(uid)
        known = self._adapters.drop(uid)
        if uid in self._fleet.released and key is not None:
            self._fleet.wakeups.wake(key, news=True)  # its last pass may have an Event to post yet
        else:
            self._adapter_rounds.cut(uid)
        if known is not None and self.complete:
            self._fleet.adapter_came_or_went(known, gone=True)

    def _put_route(self, uid: str, body: dict[str, Any]) -> None:
        """Keep what leads requests to engines; the router has what it says."""
        metadata = {key: body["metadata"].get(key) for key in _OF_ROUTES}
        self._routes.put(uid, metadata["namespace"], {"kind": body["kind"], "metadata": metadata})
        self._route_changed(body, gone=False)

    def _route_changed(self, body: dict[str, Any], *, gone: bool) -> None:
        """Put right what others have changed or deleted."""
        router = self._fleet.router
        if router.owned.note(body["kind"], body, gone=gone):
            kind, key = router.owned.owner_of(body)
            if kind == names.POOL_KIND:
                self._fleet.wakeups.wake(pool_loop(key))
            else:
                router.concerns([key])

    def _put_grant(self, uid: str, body: dict[str, Any]) -> None:
        """Keep a grant; one that cannot be read grants nothing."""
        namespace = body["metadata"]["namespace"]
        grant = _readable(AdapterGrant, body)
        if grant is None:
            self._grants.drop(uid)
        else:
            self._grants.put(uid, namespace, grant)
        if self.complete:
            self._fleet.grants_changed(namespace)

    def _put_namespace(self, uid: str, body: dict[str, Any]) -> None:
        name, labels = body["metadata"]["name"], body["metadata"].get("labels") or {}
        self._namespace_names[uid] = name
        before = self._namespaces.get(name)
        self._namespaces[name] = labels
        if before != labels and self.complete:
            self._fleet.namespace_changed(name, names_too=before is None)

    def _lose_namespace(self, uid: str) -> None:
        """Forget a namespace, unless there is another one of its name by now."""
        name = self._namespace_names.pop(uid)
        if name in self._namespace_names.values():
            return
        del self._namespaces[name]
        if self.complete:
            self._fleet.namespace_changed(name, names_too=True)

    def _put_pod(self, uid: str, body: dict[str, Any]) -> None:
        self._keep_pod(engine_pod(body))

    def _keep_pod(self, pod: EnginePod) -> None:
        pod = replace(pod, node_cordoned=pod.node in self._cordoned.values())
        self._fleet.pods[pod.uid] = pod
        self._pods.put(pod.uid, pod.namespace, pod)
        if self.complete:
            self._fleet.pod_changed(pod, gone=False)

    def _mark_pods_of(self, node: str) -> None:
        """Look again at the pods of a node that was cordoned, or is not any more."""
        for pod in [pod for pod in self._fleet.pods.values() if pod.node == node]:
            self._keep_pod(pod)

    def _put_pool(self, uid: str, body: dict[str, Any]) -> None:
        """Keep a pool: its selector and port decide who is connected to.

        A status that a pass has just written concerns no adapter.
        """
        key = _key(body)
        self._living.add(uid)
        self._fleet.bodies.keep(body)
        pool = _readable(EnginePool, body)
        if pool is None:
            self._pools.drop(uid)
        else:
            self._pools.put(uid, body["metadata"]["namespace"], pool)
        self._pool_rounds.add(uid, pool_loop(key))
        if self._fleet.seen.robbed(body, held=False):
            self._fleet.wakeups.wake(pool_loop(key))
        if self._fleet.seen.changed(body) and self.complete:
            self._fleet.sync_links()
            self._fleet.wake_pool(key)

    def _put_adapter(self, uid: str, body: dict[str, Any], *, new: bool) -> None:
        """Keep an adapter, without what only its own pass reads.

        What a pass has just written of it is no reason for another.
        """
        key, metadata = _key(body), body["metadata"]
        self._living.add(uid)
        self._existing.put(uid, metadata["namespace"], key)
        self._fleet.bodies.keep(body)
        status = {k: v for k, v in (body.get("status") or _NONE).items() if k != "conditions"}
        adapter = _readable(LoRAAdapter, {**body, "status": status})
        known = None
        if adapter is None:
            self._adapters.drop(uid)
        else:
            known = KnownAdapter.of(adapter, metadata["creationTimestamp"])
            self._adapters.put(uid, known.pool, known)
        self._adapter_rounds.add(uid, key)
        leaving = "deletionTimestamp" in metadata
        robbed = self._fleet.seen.robbed(body, held=finalizer.is_held(body))
        if (self._fleet.seen.changed(body) or robbed) and not new:
            if leaving:
                self._adapter_rounds.cut(uid)
            else:
                self._fleet.wakeups.wake(key, news=True)
        if known is not None and self.complete and (new or leaving):
            self._fleet.adapter_came_or_went(known, gone=False)


M = TypeVar("M", bound="ApiModel")


def _readable(model: type[M], body: dict[str, Any]) -> M | None:
    """Return the resource, None if this version of the operator cannot read it."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        _LOG.error("%s %s: %s", body["kind"], _key(body), error)
        return None


def _key(body: Mapping[str, Any]) -> str:
    return intern(f"{body['metadata']['namespace']}/{body['metadata']['name']}")
