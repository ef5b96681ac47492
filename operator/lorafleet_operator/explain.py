"""`plan -f FILE...`: where adapters would go and why. Reads only.

Specs come from the files, else from the cluster, if there is one: all adapters of a pool share its
engines. What engines can take, and what adapters have, is what the operator last wrote into their
status, so that a plan needs no connection to any engine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from lorafleet_operator.api import names
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.cluster import reads
from lorafleet_operator.placement import AdapterDemand, EngineSnapshot, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import PoolEngine

_Kind = TypeVar("_Kind", LoRAAdapter, EnginePool)


class InvalidManifest(ValueError):
    """Raised for what cannot be planned with; one line for people."""


def explain(files: Sequence[Path]) -> str:
    """Return the plan for the adapters in `files`, as text. Raises InvalidManifest."""
    documents = [document for path in files for document in _documents(path)]
    adapters = _parsed(documents, names.ADAPTER_KIND, LoRAAdapter)
    pools = _parsed(documents, names.POOL_KIND, EnginePool)
    if not adapters:
        raise InvalidManifest("the files hold no LoRAAdapter")
    wanted = {f"{a.metadata.namespace}/{a.spec.pool_ref.name}" for a in adapters.values()}
    unknown = {key for key in wanted if key not in pools or not pools[key].status.engines}
    if unknown:
        found = asyncio.run(_from_cluster(unknown))
        pools = _over(_parsed(found, names.POOL_KIND, EnginePool), pools)
        adapters = _over(_parsed(found, names.ADAPTER_KIND, LoRAAdapter), adapters)
    texts = [_explain_pool(key, pools.get(key), adapters.values()) for key in sorted(wanted)]
    return "\n\n".join(texts)


def _over(live: dict[str, _Kind], given: dict[str, _Kind]) -> dict[str, _Kind]:
    """Return what is given in place of what lives, with the status of what lives."""
    known = {
        key: each.model_copy(update={"status": live[key].status})
        for key, each in given.items()
        if key in live
    }
    return live | given | known


def _explain_pool(key: str, pool: EnginePool | None, adapters: Iterable[LoRAAdapter]) -> str:
    members = [a for a in adapters if f"{a.metadata.namespace}/{a.spec.pool_ref.name}" == key]
    if pool is None:
        lines = [f"  {adapter.key}: PoolNotFound" for adapter in members]
        return "\n".join([f"pool {key}: does not exist", *lines])
    result = plan(
        [AdapterDemand.from_adapter(adapter) for adapter in members],
        [_snapshot(pool, engine) for engine in pool.status.engines],
    )
    named, total = len(pool.status.engines), pool.status.total_engines
    lines = [f"pool {key}: {named} engines" + (f" of {total}" if total > named else "")]
    for adapter in sorted(members, key=lambda adapter: adapter.key):
        chosen = result.assignments[adapter.key]
        lines.append(f"  {adapter.key}: {len(chosen)} of {result.wanted[adapter.key]} engines")
        if adapter.key in result.blocked:
            reason, text = result.blocked[adapter.key]
            lines.append(f"    {reason}: {text}")
        lines += [f"    {engine}: {why}" for engine, why in result.why[adapter.key].items()]
    return "\n".join(lines)


def _snapshot(pool: EnginePool, engine: PoolEngine) -> EngineSnapshot:
    return EngineSnapshot(
        pod_name=engine.pod_name,
        instance=engine.engine,
        health=engine.health,
        health_message=engine.message,
        base_models=(pool.spec.base_model,),
        max_loras=engine.max_loras,
        max_cpu_loras=engine.max_cpu_loras,
        arena_limit_bytes=engine.arena_limit_bytes,
        arena_used_bytes=engine.arena_used_bytes,
        arena_largest_free_bytes=engine.arena_limit_bytes - engine.arena_used_bytes,
        budget_bytes=pool.spec.host_memory_budget_bytes,
    )


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
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


async def _from_cluster(pools: set[str]) -> list[dict[str, Any]]:
    """Return the pools and the adapters of their namespaces; nothing without a cluster."""
    try:
        api = await reads.connect()
    except reads.NoCluster:
        return []
    async with api:
        found: list[dict[str, Any]] = []
        for namespace in sorted({key.partition("/")[0] for key in pools}):
            try:
                found += await reads.everything(api, namespace)
            except reads.NoAnswer as error:
                raise InvalidManifest(f"namespace {namespace}: {error}") from None
        return found
