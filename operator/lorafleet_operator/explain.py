"""`plan -f FILE...`: where adapters would go and why. Reads only.

Specs come from the files, else from the cluster, if there is one: all adapters of a pool share its
engines. What engines can take, and what adapters have, is what the operator last wrote into their
status, so that a plan needs no connection to any engine.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from lorafleet_operator.api import names
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import (
    AdapterGrant,
    EnginePool,
    EngineTraffic,
    LoRAAdapter,
    Tier,
)
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.permissions import refusal
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Explanation,
    explanation,
    planned,
)
from lorafleet_operator.pool_planner import PoolPlanner
from lorafleet_operator.tenants import tenancy_of
from lorafleet_operator.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import PoolEngine

_LEAVING: Final = (EngineTraffic.DRAINING, EngineTraffic.DRAINED, EngineTraffic.DELETING)
_Kind = TypeVar("_Kind", LoRAAdapter, EnginePool, AdapterGrant)
_Live = TypeVar("_Live", LoRAAdapter, EnginePool)


_NOW: Final = "9"
"""Age of an adapter that does not exist yet: younger than any that does."""


class InvalidManifest(ValueError):
    """Raised for what cannot be planned with; one line for people."""


@dataclass(frozen=True)
class PoolExplanation:
    """The plan of one pool. `engines` of `total_engines` are known: a status names a hundred."""

    pool: str
    exists: bool
    engines: int
    total_engines: int
    adapters: tuple[Explanation, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON; the fields are stable."""
        return {
            "pool": self.pool,
            "exists": self.exists,
            "engines": self.engines,
            "totalEngines": self.total_engines,
            "adapters": [adapter.to_json() for adapter in self.adapters],
        }

    def __str__(self) -> str:
        """The plan for people: a line for the pool, for each adapter and for each of its engines."""
        more = f" of {self.total_engines}" if self.total_engines > self.engines else ""
        head = f"{self.engines} engines{more}" if self.exists else "does not exist"
        return "\n".join([f"pool {self.pool}: {head}", *map(_indented, self.adapters)])


def explain(files: Sequence[Path]) -> list[PoolExplanation]:
    """Return the plans of the pools that the adapters in `files` name. Raises InvalidManifest."""
    documents = [document for path in files for document in _documents(path)]
    adapters = _parsed(documents, names.ADAPTER_KIND, LoRAAdapter)
    pools = _parsed(documents, names.POOL_KIND, EnginePool)
    if not adapters:
        raise InvalidManifest("the files hold no LoRAAdapter")
    wanted = {adapter.pool_key for adapter in adapters.values()}
    unknown = {key for key in wanted if key not in pools or not pools[key].status.engines}
    grants = _parsed(documents, names.GRANT_KIND, AdapterGrant)
    if unknown:
        also = {names.owner_of(each.served_name) for each in adapters.values()}
        also |= {each.metadata.namespace for each in adapters.values()}
        found = asyncio.run(_from_cluster({key.partition("/")[0] for key in unknown}, also))
        pools = _over(_parsed(found, names.POOL_KIND, EnginePool), pools)
        adapters = _over(_parsed(found, names.ADAPTER_KIND, LoRAAdapter), adapters)
        grants = _parsed(found, names.GRANT_KIND, AdapterGrant) | grants
        documents = [*found, *documents]
    world, created = _world(pools, adapters, grants, documents), _created(documents)
    return [_explain_pool(key, world, adapters.values(), created) for key in sorted(wanted)]


@dataclass(frozen=True)
class Why:
    """One adapter of the cluster, and why it is where it is."""

    adapter: LoRAAdapter
    pool: EnginePool | None
    plan: Explanation | None
    """None of an adapter that is being deleted: it is in no plan."""


def why(found: Iterable[dict[str, Any]], key: str) -> Why:
    """Return why the adapter `<namespace>/<name>` among the objects `found` is where it is.

    Raises InvalidManifest if it is not among them.
    """
    found = list(found)
    adapters = _parsed(found, names.ADAPTER_KIND, LoRAAdapter)
    adapter = adapters.get(key)
    if adapter is None:
        raise InvalidManifest(f"{names.ADAPTER_KIND} {key} does not exist")
    pools = _parsed(found, names.POOL_KIND, EnginePool)
    grants = _parsed(found, names.GRANT_KIND, AdapterGrant)
    world = _world(pools, adapters, grants, found)
    result = _explain_pool(adapter.pool_key, world, adapters.values(), _created(found))
    plan = next((each for each in result.adapters if each.adapter == adapter.key), None)
    return Why(adapter, pools.get(adapter.pool_key), plan)


def _created(documents: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return when each adapter was created, as far as its manifest says."""
    found = {}
    for document in documents:
        metadata = document.get("metadata") or {}
        key = f"{metadata.get('namespace', 'default')}/{metadata.get('name')}"
        if document.get("kind") == names.ADAPTER_KIND and "creationTimestamp" in metadata:
            found[key] = str(metadata["creationTimestamp"])
    return found


def _world(
    pools: dict[str, EnginePool],
    adapters: dict[str, LoRAAdapter],
    grants: dict[str, AdapterGrant],
    documents: Iterable[dict[str, Any]],
) -> World:
    """Return as much of the world as permissions and tenants are told by."""
    by_namespace: defaultdict[str, list[EnginePool]] = defaultdict(list)
    for pool in pools.values():
        by_namespace[pool.metadata.namespace].append(pool)
    existing: defaultdict[str, list[str]] = defaultdict(list)
    for adapter in adapters.values():
        existing[adapter.metadata.namespace].append(adapter.key)
    granted: defaultdict[str, list[AdapterGrant]] = defaultdict(list)
    for grant in grants.values():
        granted[grant.metadata.namespace].append(grant)
    namespaces = {
        document["metadata"]["name"]: document["metadata"].get("labels") or {}
        for document in documents
        if document.get("kind") == "Namespace" and document.get("apiVersion") == "v1"
    }
    return World({}, by_namespace, {}, existing, (), granted, namespaces)


def _indented(adapter: Explanation) -> str:
    return "\n".join(f"  {line}" for line in str(adapter).splitlines())


def _over(live: dict[str, _Live], given: dict[str, _Live]) -> dict[str, _Live]:
    """Return what is given in place of what lives, with the status of what lives."""
    known = {
        key: each.model_copy(update={"status": live[key].status})
        for key, each in given.items()
        if key in live
    }
    return live | given | known


def _explain_pool(
    key: str, world: World, adapters: Iterable[LoRAAdapter], created: Mapping[str, str]
) -> PoolExplanation:
    members = sorted((a for a in adapters if a.pool_key == key), key=lambda a: a.key)
    pool = world.pool(key)
    barred = _barred(key, world, adapters, created)
    if pool is None:
        lost = (Reason.POOL_NOT_FOUND, f"EnginePool {key} does not exist")
        unplaced = [Explanation(a.key, (), 0, barred.get(a.key, lost), ()) for a in members]
        return PoolExplanation(key, False, 0, 0, tuple(unplaced))
    holders = _Holders(members)
    result = planned(
        (
            _demand(a, created.get(a.key, _NOW))
            for a in members
            if not a.metadata.deletion_timestamp and a.key not in barred
        ),
        (_snapshot(pool, engine, holders) for engine in pool.status.engines),
        tenancy_of(pool.spec, world.namespaces.get),
    )
    explained = [
        explanation(result, a.key)
        if a.key in result.entries
        else Explanation(a.key, (), 0, barred[a.key], ())
        for a in members
        if a.key in result.entries or a.key in barred
    ]
    known = len(pool.status.engines)
    return PoolExplanation(key, True, known, pool.status.total_engines, tuple(explained))


def _barred(
    key: str, world: World, adapters: Iterable[LoRAAdapter], created: Mapping[str, str]
) -> dict[str, tuple[Reason, str]]:
    """Return why adapters of the pool are not in its plan: what they may not use, or an older one of
    the same name in it or in a pool that shares engines with it."""
    found = {}
    claims: defaultdict[str, PoolPlanner] = defaultdict(PoolPlanner)
    claimants = []
    for each in adapters:
        no = refusal(world, each.metadata.namespace, each.pool_key, each.served_name)
        if no is not None:
            found[each.key] = no
        elif not each.metadata.deletion_timestamp:
            since = created.get(each.key, _NOW)
            claims[each.pool_key].claim(each.key, each.served_name, since, holds=each.holds_name)
            claimants.append(each)
    rivals = [claims[rival] for rival in _sharing_engines(key, world) if rival in claims]
    for each in claimants:
        if each.pool_key != key:
            continue
        since = created.get(each.key, _NOW)
        if owner := claims[key].claim(each.key, each.served_name, since, rivals):
            text = f"served name {each.served_name} is taken by {owner}"
            found[each.key] = (Reason.NAME_TAKEN, text)
    return found


def _sharing_engines(key: str, world: World) -> list[str]:
    """Return the pools that have engines in common with this one."""
    namespace, _, name = key.partition("/")
    pools = world.pools.get(namespace) or ()
    engines = {p.metadata.name: {each.pod_name for each in p.status.engines} for p in pools}
    own = engines.pop(name, set())
    return [f"{namespace}/{other}" for other, pods in engines.items() if pods & own]


def _demand(adapter: LoRAAdapter, created: str) -> AdapterDemand:
    """Return what the adapter needs; the refusals that its status tells are of its present spec.

    Guests stay for as long as requests ask for them: when that ends, no status says.
    """
    status = adapter.status
    told = status.observed_generation == adapter.metadata.generation
    refused = {p: each.message for each in status.refusals for p in each.pods} if told else {}
    visits = frozenset(engine.pod_name for engine in status.engines if engine.guest)
    return replace(AdapterDemand.from_adapter(adapter, created), refused=refused, visits=visits)


class _Holders:
    """What each engine has, by its pod's name, as far as the adapters' status tells."""

    def __init__(self, adapters: Iterable[LoRAAdapter]) -> None:
        self.loaded: defaultdict[str, set[str]] = defaultdict(set)
        self.staged: defaultdict[str, set[str]] = defaultdict(set)
        for adapter in adapters:
            for engine in adapter.status.engines:
                # A name that an engine loads at its first request is published, and staged only.
                if engine.published or engine.tier in (Tier.GPU, Tier.HOST):
                    self.loaded[engine.pod_name].add(adapter.key)
                if engine.digest and engine.tier is not Tier.SOURCE:
                    self.staged[engine.pod_name].add(engine.digest)


def _snapshot(pool: EnginePool, engine: PoolEngine, holders: _Holders) -> EngineSnapshot:
    return EngineSnapshot(
        pod_name=engine.pod_name,
        node=engine.node,
        zone=engine.zone,
        health=engine.health,
        health_message=engine.message,
        base_models=(engine.base_model or pool.spec.base_model,),
        tensor_parallel_size=engine.tensor_parallel_size or 1,
        loaded=frozenset(holders.loaded[engine.pod_name]),
        staged=frozenset(holders.staged[engine.pod_name]),
        max_lora_rank=engine.max_lora_rank,
        max_loras=engine.max_loras,
        max_cpu_loras=engine.max_cpu_loras,
        arena_limit_bytes=engine.arena_limit_bytes,
        arena_used_bytes=engine.arena_used_bytes,
        arena_largest_free_bytes=engine.arena_limit_bytes - engine.arena_used_bytes,
        budget_bytes=pool.spec.host_memory_budget_bytes,
        max_adapters=pool.spec.max_adapters_per_engine,
        cordoned=engine.cordoned,
        leaving=engine.traffic in _LEAVING,
    )


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise InvalidManifest(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise InvalidManifest(f"{path}: {' '.join(str(error).split())}") from None
    return [document for document in found if isinstance(document, dict)]


def _parsed(documents: Iterable[dict[str, Any]], kind: str, model: type[_Kind]) -> dict[str, _Kind]:
    found: dict[str, _Kind] = {}
    for document in documents:
        if document.get("kind") != kind or document.get("apiVersion") != names.API_VERSION:
            continue
        metadata = {"namespace": "default", **(document.get("metadata") or {})}
        try:
            parsed = model.model_validate({**document, "metadata": metadata})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            text = f"{kind} {metadata.get('name', '?')}: {where}: {first['msg']}"
            raise InvalidManifest(text) from None
        found[parsed.key] = parsed
    return found


async def _from_cluster(namespaces: set[str], also: set[str]) -> list[dict[str, Any]]:
    """Return what is in the namespaces; nothing without a cluster. `also`: see `everything`."""
    try:
        api = await reads.connect()
    except reads.BrokenConfig as error:
        raise InvalidManifest(str(error)) from None
    except reads.NoCluster:
        return []
    async with api:
        found: list[dict[str, Any]] = []
        for namespace in sorted(namespaces):
            try:
                found += await reads.everything(reads.getter(api), namespace, also)
            except NoAnswer as error:
                raise InvalidManifest(f"namespace {namespace}: {error}") from None
        return found
