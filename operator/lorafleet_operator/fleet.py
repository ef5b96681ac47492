"""Everything that lives as long as the operator, in one place for the passes to use."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lorafleet.certificates import CertificateFiles
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator import metrics
from lorafleet_operator.affected import adapters_affected
from lorafleet_operator.ahead import Ahead
from lorafleet_operator.awaited_secrets import AwaitedSecrets
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.bodies import Bodies
from lorafleet_operator.cluster.owned import Owned
from lorafleet_operator.cluster.writes import StatusWriter
from lorafleet_operator.fair import FairPlaces
from lorafleet_operator.first_requests import Requested, owners
from lorafleet_operator.holders import Holders
from lorafleet_operator.load_rates import LoadRates
from lorafleet_operator.memory import Memory
from lorafleet_operator.permissions import refusal, users
from lorafleet_operator.pool_planner import PoolPlanner
from lorafleet_operator.routing.router import Router
from lorafleet_operator.safe_points import SafePoints
from lorafleet_operator.source_reader import Readers
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.term import Term
from lorafleet_operator.transfer.links import Endpoint, EngineLink, Links
from lorafleet_operator.transfer.pacing import Paces
from lorafleet_operator.wake import Seen, Wakeups

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kubernetes.aio.client import ApiClient

    from lorafleet_operator.api.v1alpha1 import EnginePool
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.settings import OperatorSettings
    from lorafleet_operator.tenure import Tenure
    from lorafleet_operator.world import KnownAdapter, World

_LOG: Final = logging.getLogger(__name__)


class Fleet:
    """The operator's view of its world, and its connections to it."""

    def __init__(self, settings: OperatorSettings, world: World, api: ApiClient) -> None:
        self.settings = settings
        self.world = world
        self.api = api
        self.bodies = Bodies()
        self.writer = StatusWriter(api, self.bodies)
        self.released: set[str] = set()
        """UIDs of deleted adapters that were unloaded and let go."""
        self.memory = Memory()
        self.holders = Holders()
        self.requested = Requested()
        self.safe_points = SafePoints()
        self.wakeups = Wakeups()
        self._planners: dict[str, PoolPlanner] = {}
        self._pods: dict[str, EnginePod] = {}  # as of their last event, by UID
        self._endpoints: dict[str, Endpoint] = {}  # of reachable pods of pools, by UID
        self._living: set[str] = set()  # UIDs of reachable pods of our pools, and of no pool
        self.seen = Seen()
        self.secrets = AwaitedSecrets(
            ask=partial(reads.secret_version, api), wake=partial(self.wakeups.wake, news=True)
        )
        self.transfers = FairPlaces(settings.transfers, settings.transfers * 3 // 4)
        self.paces = Paces()
        self.sources = FairPlaces(settings.sources, settings.sources * 3 // 4)
        self.readers = Readers(self)
        self.ahead = Ahead(self.wakeups)
        self.load_rates = LoadRates(asyncio.get_running_loop().time)
        self.source_settings = SourceSettings(
            volume_root=settings.volume_root,
            push_root=settings.push_dir,
            allow_private_addresses=settings.allow_private_addresses,
        )
        self._alone = Term()
        self.tenure: Tenure | None = None
        """The competition with other operators, None for one that runs alone."""
        self.certificates = CertificateFiles(settings.tls_dir) if settings.tls_dir else None
        metrics.CERTIFICATES.files = self.certificates
        self.links = Links(
            certificates=self.certificates,
            heartbeat_seconds=settings.heartbeat_seconds,
            on_change=self._engine_changed,
        )
        self.pods: dict[str, EnginePod] = {}
        """Every pod, by UID."""
        self.router = Router(Owned(api), self.links, self.holders, self.pods)
        self.fresh: list[EngineLink] = []
        """Connections of which nothing was known when somebody last looked."""
        self.alive_at = asyncio.get_running_loop().time()
        self.lists_missing = False
        """Whether passes wait for lists that have not been read yet: then only these prove life."""

    def alive(self, *, listed: bool = False) -> None:
        """Note a proof of life: an event or a list, which only an API server in reach gives."""
        if listed or not self.lists_missing:
            self.alive_at = asyncio.get_running_loop().time()

    def term(self, pool: str) -> Term | None:
        """Return in which term this operator acts for the pool, None while another may."""
        return self._alone if self.tenure is None else self.tenure.term(pool)

    def owns(self, pool: str) -> bool:
        """Return whether this operator acts for the pool `<namespace>/<name>` now."""
        return self.term(pool) is not None

    def shards_changed(self, shards: set[int]) -> None:
        """Begin to act for the pools of these shards, or cease to: connections, then passes.

        What was planned for them at an earlier time of ours is not true any more.
        """
        assert self.tenure is not None
        pools = {pool.key for pools in self.world.pools.values() for pool in pools}
        concerned = {p for p in pools | set(self.world.adapters) if self.tenure.shard(p) in shards}
        for key in concerned:
            self._planners.pop(key, None)
        self.sync_links()
        for key in concerned:
            if self.owns(key):
                self.wake_pool(key)
                continue
            for adapter in self.world.adapters.get(key) or ():
                metrics.ADAPTERS.forget(*adapter.key.split("/"))
                self.secrets.follow(adapter.key, None)

    def planner(self, pool: str) -> PoolPlanner:
        """Return the plan of the pool `<namespace>/<name>`."""
        return self._planners.setdefault(pool, PoolPlanner())

    def tenant(self, pool: str, namespace: str) -> str:
        """Return whose turn it is when adapters of the namespace are sent to the pool."""
        return self.planner(pool).plan.board.tenancy.tenant_of(namespace)

    def sharing_engines(self, pool: EnginePool) -> Iterator[PoolPlanner]:
        """Yield the plans of other pools that have engines in common with this one."""
        members = self.planner(pool.key).members.keys()
        for other in self.world.pools.get(pool.metadata.namespace) or ():
            planner = self._planners.get(other.key)
            if other.key != pool.key and planner and not members.isdisjoint(planner.members):
                yield planner

    def sync_links(self) -> None:
        """Open and close connections so that every reachable pod of every pool has one."""
        living_pools = {pool.key for pools in self.world.pools.values() for pool in pools}
        self._planners = {key: each for key, each in self._planners.items() if key in living_pools}
        self.paces.forget(living_pools)
        metrics.POOLS.keep({key for key in living_pools if self.owns(key)})
        self.load_rates.keep_pools(living_pools)
        self.safe_points.keep(living_pools)
        for planner in self._planners.values():
            planner.stale = True
        self._pods = {pod.uid: pod for pods in self.world.pods.values() for pod in pods}
        self._endpoints, self._living = {}, set()
        for pod in self._pods.values():
            self._reach(pod)
        self.connect(self._endpoints.values(), self._living)
        self.holders.keep({link.endpoint.uid for link in self.links.all()})

    def connect(self, wanted: Collection[Endpoint], living: Collection[str]) -> None:
        """Open and close connections so that they match `wanted`; see `Links.sync`."""
        self.links.sync(wanted, living)
        self.fresh = [link for link in self.links.all() if not link.tried.is_set()]

    def _reach(self, pod: EnginePod) -> bool:
        """Note where the pod's sidecar is to be dialled, if it is; return whether that is new.

        Whoever acts for a pool of the pod dials it. Of several pools that select it, the first by
        name tells the port, and the name that the sidecar's certificate must carry.
        """
        before = (self._endpoints.pop(pod.uid, None), pod.uid in self._living)
        self._living.discard(pod.uid)
        if pod.running and pod.ip:
            pools = self.world.pools.get(pod.namespace) or ()
            owners = [pool for pool in pools if pod.matches(pool.spec.selector.match_labels)]
            ours = any(self.owns(pool.key) for pool in owners)
            if ours or not owners:
                self._living.add(pod.uid)
            if ours:
                first = min(owners, key=lambda pool: pool.metadata.name)
                name = self.settings.tls_server_name.format(
                    pool=first.metadata.name, namespace=pod.namespace, pod=pod.name, address=""
                )
                self._endpoints[pod.uid] = Endpoint(
                    pod.key, pod.uid, pod.ip, first.spec.sidecar_port, name
                )
        return before != (self._endpoints.get(pod.uid), pod.uid in self._living)

    def look_at_pool_in(self, key: str, seconds: float) -> None:
        """Have the pool `<namespace>/<name>` looked at again in so many seconds."""
        self.wakeups.later(pool_loop(key), seconds)

    def wake_pool(self, key: str) -> None:
        """Wake the pool `<namespace>/<name>` and all its adapters."""
        self.wakeups.wake(pool_loop(key))
        for adapter in self.world.adapters.get(key) or ():
            self.wakeups.wake(adapter.key)

    def wake_beside(self, pool: str, pod_name: str) -> None:
        """Wake the pool and those of its adapters that news of one engine may concern.

        An engine that restarts must not wake ten thousand adapters that it does not have.
        """
        interested = self.planner(pool).interested(pod_name)
        if interested is None:
            self.wake_pool(pool)
        self.wakeups.wake(pool_loop(pool))
        for key in interested or ():
            self.wakeups.wake(key)

    def pod_changed(self, pod: EnginePod, *, gone: bool) -> None:
        """Follow a pod: connections, and passes for whom it concerns, if what we read of it changed."""
        before = self._pods.pop(pod.uid, None)
        if gone:
            self.pods.pop(pod.uid, None)
        if gone or pod != before or pod.ready != before.ready:
            self._route_again(pod.uid)
        if not gone:
            self._pods[pod.uid] = pod
            if pod == before:
                return
            if before is not None and replace(before, warm=pod.warm) == pod:
                self._wake_owners(pod)  # what we said ourselves concerns no adapter
                return
        if self._reach(replace(pod, running=False) if gone else pod):
            self.connect(self._endpoints.values(), self._living)
        if gone:
            self.holders.forget(pod.uid)
            self.requested.note(pod.key, ())
        for pool in self.world.pools.get(pod.namespace) or ():
            labels = pool.spec.selector.match_labels
            matches = pod.matches(labels)
            if matches or (before is not None and before.matches(labels)):
                planner = self.planner(pool.key)
                planner.stale |= gone or not matches or planner.members.get(pod.name) != pod
                self.wake_beside(pool.key, pod.name)

    def _route_again(self, uid: str) -> None:
        """Let the router look at the adapters of one engine, for its pod has changed."""
        link = self.links.get(uid)
        inventory = link.inventory if link else None
        self.router.concerns((e.adapter for e in inventory.loaded) if inventory else (), uid)

    def _wake_owners(self, pod: EnginePod) -> None:
        for pool in self.world.pools.get(pod.namespace) or ():
            if pod.matches(pool.spec.selector.match_labels):
                self.wakeups.wake(pool_loop(pool.key))

    def adapter_came_or_went(self, known: KnownAdapter, *, gone: bool) -> None:
        """Wake the adapter's pool, and adapters that want the same served name."""
        if not self.owns(known.pool):
            return
        self.wakeups.wake(pool_loop(known.pool))
        planner = self.planner(known.pool)
        if gone:
            planner.forget(known.key)
            tenant = self.tenant(known.pool, known.demand.namespace)
            self.load_rates.forget(known.pool, tenant, known.key)
        else:
            planner.note(known, barred=self.barred(known))
        pool = self.world.pool(known.pool)
        rivals = self.sharing_engines(pool) if pool is not None else ()
        for each in (planner, *rivals):
            for other in each.claimants(known.served_name):
                self.wakeups.wake(other)
        self.name_freed(known.served_name)
        if pool is None and not self.world.adapters.get(known.pool):
            self._planners.pop(known.pool, None)  # people may name any pool

    def name_freed(self, served_name: str) -> None:
        """Refuse the requests that wait for a name, if nobody owns it any more."""
        pods = self.requested.pods(served_name)
        for link in self.links.all() if pods else ():
            if link.endpoint.pod in pods:
                self._hear_requests(link)

    def barred(self, known: KnownAdapter) -> bool:
        """Return whether the adapter may not be served by its pool, or under its name."""
        about = (known.demand.namespace, known.pool, known.served_name)
        return refusal(self.world, *about) is not None

    def grants_changed(self, namespace: str) -> None:
        """Wake adapters of other namespaces that use what the grants of this one are about.

        A pass over one that may not be served any more does not go on: it might be a long transfer.
        """
        inventories = (link.inventory for link in self.links.all() if link.inventory)
        served = ((e.adapter, e.served_name) for each in inventories for e in each.loaded)
        for known in users(self.world, namespace, served):
            if self.barred(known):
                self.wakeups.cut(known.key)
            else:
                self.wakeups.wake(known.key, news=True)

    def namespace_changed(self, name: str, *, names_too: bool) -> None:
        """Let pools look again whose tenant it is.

        names_too: it came or went, and with it the right to the names that begin with it.
        """
        if names_too:
            self.grants_changed(name)
        for pools in self.world.pools.values():
            for pool in pools:
                planner = self.planner(pool.key)
                by_label = any(tenant.by_label for tenant in pool.spec.tenants)
                # Most namespaces have no adapters: nothing was decided by their labels.
                if by_label and planner.plan.board.tenancy.told(name):
                    planner.tenants_stale = True
                    self.wake_pool(pool.key)

    def forget_adapter(self, uid: str, key: str) -> None:
        """Forget an adapter that is gone and of which nothing is left."""
        self.released.discard(uid)
        self.bodies.drop(uid)
        self.memory.forget(uid)
        self.router.forget(key, uid)
        self.secrets.follow(key, None)
        self.readers.drop(uid)

    async def close(self) -> None:
        """Close every connection."""
        await self.ahead.close()
        await self.readers.close()
        await self.secrets.close()
        await self.router.close()
        await self.requested.close()
        await self.links.close()
        await self.api.close()

    def _members(self, pool: EnginePool) -> Collection[str]:
        """Return the names of the pool's pods: as its plan has them, unless that is to look again."""
        planner = self.planner(pool.key)
        if planner.stale:
            return {pod.name for pod in self.world.members(pool)}
        return planner.members

    def _engine_changed(self, link: EngineLink, previous: pb.Inventory | None) -> None:
        namespace, _, name = link.endpoint.pod.partition("/")
        for key, planner in self._planners.items():
            if key.startswith(f"{namespace}/"):
                planner.engine_changed(name)
        if link.inventory is not None and link.inventory is not previous:
            self.holders.note(link.endpoint.uid, link.inventory)
        for each in (previous, link.inventory):
            adapters = (entry.adapter for entry in each.loaded) if each else ()
            self.router.concerns(adapters, link.endpoint.uid)
        self._hear_requests(link)
        affected = adapters_affected(previous, link.inventory, in_contact=link.in_contact)
        for pool in self.world.pools.get(namespace) or ():
            if name in self._members(pool):
                if affected is not None:
                    self.wakeups.wake(pool_loop(pool.key))
                elif link.profile is None or self.links.shared(link):
                    self.wake_beside(pool.key, name)
                else:
                    self.wake_pool(pool.key)  # what no other engine takes, this one may
        loaded = link.inventory.loaded if link.inventory and affected is None else ()
        for key in affected or {entry.adapter for entry in loaded}:
            self.wakeups.wake(key)

    def _hear_requests(self, link: EngineLink) -> None:
        """Wake the adapters that requests wait for on an engine; refuse names that nobody owns."""
        pod = link.endpoint.pod
        heard = link.inventory is not None and link.in_contact
        names = link.inventory.requested if link.inventory is not None and heard else ()
        new = self.requested.note(pod, names)
        if not names:
            return
        namespace, _, name = pod.partition("/")
        planners, all_ours = [], True
        for pool in self.world.pools.get(namespace) or ():
            if name in self._members(pool):
                planners.append(self.planner(pool.key))
                planners[-1].look_at_adapters(self.world.adapters.get(pool.key) or (), self.barred)
                all_ours &= self.owns(pool.key)
        found = owners(names, planners)
        for served_name, key in found.items():
            if key is not None and served_name in new:
                self.wakeups.wake(key, news=True)
        unknown = [pb.RefusedName(served_name=each) for each, key in found.items() if key is None]
        if unknown and all_ours:
            self.requested.refuse(link, unknown)


def pool_loop(key: str) -> str:
    """Return the wake-up key of a pool: apart from an adapter of the same name."""
    return f"pool {key}"
