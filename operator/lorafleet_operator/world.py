"""What the watches and the links have brought: pods, pools, adapters, and engines as they are seen.

Gathering only: nothing here decides, and nothing is kept from earlier passes but the links'
latest inventories.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, Final

from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.api.names import LABEL_CORDONED, LABEL_DRAIN
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import AdapterDemand

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Mapping

    from lorafleet.profile import EngineProfile

    from lorafleet_operator.api.v1alpha1 import AdapterGrant, EnginePool, LoRAAdapter, Recycling
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.transfer.links import Links

_EVER: Final = float("inf")
_HEALTH = {
    pb.ENGINE_HEALTH_STARTING: EngineHealth.STARTING,
    pb.ENGINE_HEALTH_READY: EngineHealth.READY,
    pb.ENGINE_HEALTH_STOCK: EngineHealth.STOCK,
    pb.ENGINE_HEALTH_REFUSED: EngineHealth.REFUSED,
}

_NO_SIDECAR = (
    "the pod has no sidecar: it gets one when it is made, by its label lorafleet.dev/engine-pool; "
    "delete it, and if the next one has none either, install the injection or put the snippet in"
)


@dataclass(frozen=True)
class EngineView:
    """One engine as a pass sees it."""

    pod: EnginePod
    member: bool = True
    """Whether the pod is in the pool that the pass is about."""
    problem: str = ""
    """Why there is no contact with the sidecar; empty when the inventory is current."""
    ill_for: float = 0.0
    """Seconds since the engine last took orders; infinite if it never did."""
    away_for: float = 0.0
    """The same, counted from the link's beginning if it never did; infinite without a link."""
    inventory: pb.Inventory | None = None
    """The latest inventory, None if the sidecar never answered."""
    profile: EngineProfile | None = None
    profile_problem: str = ""
    """Why the sidecar's answer for the profile cannot be read: nothing can be checked then."""
    digests: Mapping[str, str] | None = None
    """Fingerprint -> digest, as far as the sidecar named them."""

    @property
    def uid(self) -> str:
        """The pod's UID, the engine's key in a pass."""
        return self.pod.uid

    @cached_property
    def instance(self) -> str:
        """Pod UID and start of vLLM: what identifies an engine."""
        started = self.inventory.engine_instance if self.inventory else ""
        return f"{self.pod.uid}/{started}" if started else ""

    @property
    def zone(self) -> str:
        """The zone of the pod's node, "" if nobody says."""
        return self.pod.zone

    @property
    def cordoned(self) -> bool:
        """Whether the engine is to get no new adapters."""
        label = dict(self.pod.labels).get(LABEL_CORDONED, "")
        return self.pod.node_cordoned or label.lower() == "true"

    @property
    def draining(self) -> bool:
        """Whether the pod's label asks that other engines take its adapters over."""
        return dict(self.pod.labels).get(LABEL_DRAIN, "").lower() == "true"

    @property
    def leaving(self) -> bool:
        """Whether the engine is going, by label or with its pod."""
        return self.draining or self.pod.terminating

    @cached_property
    def health(self) -> EngineHealth:
        """What the sidecar says of its engine; Unreachable without contact."""
        if self.problem or self.inventory is None:
            return EngineHealth.UNREACHABLE
        if self.profile_problem:
            return EngineHealth.REFUSED
        return _HEALTH.get(self.inventory.health, EngineHealth.STARTING)

    @property
    def takes_orders(self) -> bool:
        """Whether loads can be asked for now."""
        return self.health in (EngineHealth.READY, EngineHealth.STOCK)

    @property
    def lacks_sidecar(self) -> bool:
        """Whether nobody ever answered and nothing in the pod looks as if it could."""
        return self.inventory is None and not self.pod.sidecar

    @property
    def message(self) -> str:
        """Why the engine is not Ready, in the sidecar's own words."""
        if self.lacks_sidecar:
            return f"{_NO_SIDECAR} ({self.problem})" if self.problem else _NO_SIDECAR
        if self.problem or self.inventory is None:
            return self.problem or "the sidecar has not answered yet"
        return (
            self.profile_problem or self.inventory.health_message or self.inventory.plugin_message
        )

    @property
    def base_models(self) -> tuple[str, ...]:
        """Every name under which the engine serves its base model; empty while nobody knows."""
        if self.profile is None:
            return ()
        return tuple(filter(None, (self.profile.base_model, *self.profile.base_model_aliases)))

    def loaded(self, adapter: str) -> list[pb.LoadedAdapter]:
        """Return what the engine has loaded for the adapter, whatever the served name."""
        return self._loaded.get(adapter, [])

    @cached_property
    def _loaded(self) -> Mapping[str, list[pb.LoadedAdapter]]:
        found = defaultdict[str, list[pb.LoadedAdapter]](list)
        for entry in self.inventory.loaded if self.inventory else ():
            found[entry.adapter].append(entry)
        return found

    def is_recycled(self, going: Recycling | None) -> bool:
        """Return whether this start of vLLM is the one that a pool's status says is to end."""
        return going is not None and going.engine == self.instance[-128:]

    def serves(self, adapter: str) -> bool:
        """Return whether requests for the adapter are answered, by whatever revision."""
        return self.takes_orders and any(entry.published for entry in self.loaded(adapter))

    def staged(self, digest: str) -> pb.StagedRevision | None:
        """Return the staged revision of `digest`."""
        return self._staged.get(digest)

    @cached_property
    def _staged(self) -> Mapping[str, pb.StagedRevision]:
        return {entry.digest: entry for entry in self.inventory.staged} if self.inventory else {}

    def digest_of(self, fingerprint: str) -> str:
        """Return the digest under which the source's content is staged here, "" if it is not."""
        if not fingerprint:
            return ""
        named = self._named.get(fingerprint, "")
        learned = (self.digests or {}).get(fingerprint, "")
        return named or (learned if learned in self._staged else "")

    @cached_property
    def _named(self) -> Mapping[str, str]:
        staged = self.inventory.staged if self.inventory else ()
        return {entry.fingerprint: entry.digest for entry in reversed(staged)}  # the first of two


@dataclass(frozen=True)
class World:
    """What the watches have brought; the collections are live views."""

    pods: Mapping[str, Collection[EnginePod]]
    """By namespace."""
    pools: Mapping[str, Collection[EnginePool]]
    """By namespace."""
    adapters: Mapping[str, Collection[KnownAdapter]]
    """By the key of their pool, `<namespace>/<pool name>`."""
    existing: Mapping[str, Collection[str]]
    """Keys of all adapters, by namespace: also of those that this version cannot read."""
    living: Container[str]
    """UIDs of all adapters and pools."""
    grants: Mapping[str, Collection[AdapterGrant]] = field(default_factory=dict)
    """By namespace."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of all namespaces by name; empty where the operator may not read them."""

    def pool(self, key: str) -> EnginePool | None:
        """Return the pool `<namespace>/<name>`, None if there is none."""
        pools = self.pools.get(key.partition("/")[0]) or ()
        return next((pool for pool in pools if pool.key == key), None)

    def known(self, keys: Container[str]) -> Iterator[KnownAdapter]:
        """Yield these adapters, as far as they can be read; looks through all."""
        return (k for each in self.adapters.values() for k in each if k.key in keys)

    def keeper(self, pod: EnginePod) -> EnginePool | None:
        """Return the pool that cares for the pod: of those that select it, the first by name."""
        pools = self.pools.get(pod.namespace) or ()
        owners = [pool for pool in pools if pod.matches(pool.spec.selector.match_labels)]
        return min(owners, key=lambda pool: pool.metadata.name, default=None)

    def is_namespace(self, name: str) -> bool:
        """Return whether there is such a namespace, as far as the operator can see."""
        return any(
            name in each for each in (self.namespaces, self.existing, self.pools, self.grants)
        )

    def pods_anywhere(self) -> Iterator[EnginePod]:
        """Yield the pods of all namespaces."""
        for pods in self.pods.values():
            yield from pods

    def gone(self, uid: str) -> bool:
        """Return whether the adapter or pool does not exist any more."""
        return uid not in self.living

    def members(self, pool: EnginePool) -> list[EnginePod]:
        """Return the pods that the pool selects, by name."""
        pods = self.pods.get(pool.metadata.namespace) or ()
        labels = pool.spec.selector.match_labels
        return sorted((pod for pod in pods if pod.matches(labels)), key=lambda pod: pod.name)


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """What passes over other adapters and pools need of an adapter, and no more: it is kept of all."""

    demand: AdapterDemand
    """What it needs by its spec and what its status remembers."""
    served_name: str
    created: str
    """Creation time as the API server wrote it: sorts by age."""
    pool: str
    """`<namespace>/<name>` of its pool."""
    deleting: bool = False
    """Whether it is on its way out."""
    pushed: str = ""
    """The pushed revision that its spec names."""
    holds_name: bool = False
    """Whether its status says that the served name is its own."""
    settled: bool = False
    """Whether its status says that all engines that should serve it as it is now wanted do so."""

    @classmethod
    def of(cls, adapter: LoRAAdapter, created: str) -> KnownAdapter:
        """Return what is kept of a resource."""
        metadata, status = adapter.metadata, adapter.status
        served = status.ready_engines == status.desired_engines > 0
        return cls(
            demand=AdapterDemand.from_adapter(adapter, created),
            served_name=intern(adapter.served_name),
            created=intern(created),
            pool=intern(adapter.pool_key),
            deleting=metadata.deletion_timestamp is not None,
            pushed=adapter.spec.source.push.revision if adapter.spec.source.push else "",
            holds_name=adapter.holds_name,
            settled=served and status.observed_generation == metadata.generation,
        )

    @property
    def key(self) -> str:
        """`<namespace>/<name>`."""
        return self.demand.key


def engine_view(pod: EnginePod, links: Links, *, member: bool = True) -> EngineView:
    """Return the engine of `pod` as its link sees it."""
    link = links.get(pod.uid)
    if link is None:
        problem = "the pod is not running" if not pod.running else "the pod has no address yet"
        return EngineView(pod, member=member, problem=problem, ill_for=_EVER, away_for=_EVER)
    return EngineView(
        pod,
        member=member,
        problem=link.problem,
        ill_for=link.ill_for(),
        away_for=link.away_for(),
        inventory=link.inventory,
        profile=link.profile,
        profile_problem=link.profile_problem,
        digests=link.digests,
    )


def pool_engines(pool: EnginePool, world: World, links: Links) -> list[EngineView]:
    """Return the pool's engines, by pod name."""
    return [engine_view(pod, links) for pod in world.members(pool)]


def engines_outside(uids: Container[str], world: World, links: Links) -> list[EngineView]:
    """Return the engines of those pods, of which none is in the pool that the pass is about."""
    return [
        engine_view(pod, links, member=False)
        for pod in world.pods_anywhere()
        if pod.uid in uids and links.get(pod.uid) is not None
    ]
