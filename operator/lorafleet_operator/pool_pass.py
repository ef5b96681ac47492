"""One pass over one EnginePool: its status, and adapters on its engines that nobody owns."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from lorafleet.errors import EngineUnreachable, LorafleetError

from lorafleet_operator import clock, metrics
from lorafleet_operator.api.conditions import ConditionType, Reason, condition, merge_conditions
from lorafleet_operator.api.names import MAX_STATUS_ENGINES
from lorafleet_operator.api.v1alpha1 import (
    EngineHealth,
    EnginePoolStatus,
    EngineTraffic,
    PoolEngine,
)
from lorafleet_operator.lifecycle import Life, keep_engines
from lorafleet_operator.observe import first_answers
from lorafleet_operator.orders import unload_request
from lorafleet_operator.pool_series import TenantFigures
from lorafleet_operator.progress_conditions import routed
from lorafleet_operator.recycling import growth, loads
from lorafleet_operator.route import route_pool
from lorafleet_operator.tenant_usage import tenant_usage
from lorafleet_operator.world import pool_engines

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lorafleet_operator.api.v1alpha1 import EnginePool, RoutingStatus, TenantUsage
    from lorafleet_operator.cluster.owned import NotWritten
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.world import EngineView


async def reconcile_pool(pool: EnginePool, fleet: Fleet) -> EnginePoolStatus:
    """Unload what belongs to adapters that are gone, and return the pool's status."""
    if fleet.fresh:
        await first_answers(fleet, fleet.world.members(pool))
    await unload_orphans(pool, fleet)
    routing, problem = await route_pool(pool, fleet)
    views = pool_engines(pool, fleet.world, fleet.links)
    life = await keep_engines(pool, views, fleet, clock.now())
    status = pool_status(pool, views, life=life)
    status = status.model_copy(update={"tenants": tenants(pool, fleet)})
    metrics.POOLS.show_tenants(pool.key, [_figures(tenant) for tenant in status.tenants])
    return with_routing(pool, status, routing, problem)


def tenants(pool: EnginePool, fleet: Fleet) -> list[TenantUsage]:
    """Return what the pool's tenants have by the plan that `keep_engines` has just looked at."""
    planner = fleet.planner(pool.key)
    planner.settle(fleet.wakeups)  # a pass may have seen other tenants since, and waits now
    return tenant_usage(planner.plan, partial(fleet.load_rates.behind, pool.key))


def _figures(usage: TenantUsage) -> TenantFigures:
    return TenantFigures(
        usage.namespace or usage.name,
        usage.adapters,
        usage.staged_bytes,
        usage.staged_bytes_quota,
        usage.pinned_bytes,
        usage.guaranteed_bytes,
        usage.throttled,
    )


def with_routing(
    pool: EnginePool,
    status: EnginePoolStatus,
    routing: RoutingStatus | None,
    problem: NotWritten | None,
    now: datetime | None = None,
) -> EnginePoolStatus:
    """Return `status` with what there is to say of the pool's own Service. Pure."""
    said = [
        condition(
            ConditionType.ROUTED,
            *routed(problem),
            generation=pool.metadata.generation,
            now=now or datetime.now(UTC),
        )
    ]
    others = [each for each in status.conditions if each.type != ConditionType.ROUTED]
    before = status.conditions if routing else others
    conditions = merge_conditions(before, said if routing else [])
    return status.model_copy(update={"routing": routing, "conditions": conditions})


async def unload_orphans(pool: EnginePool, fleet: Fleet) -> None:
    """Unload served names whose LoRAAdapter does not exist any more, or has left for good.

    Runs only after the framework has listed all adapters. Such names are left behind when the
    operator was away during a deletion, or the engine was, and when an adapter is given to a pool
    of another operator, which does not reach the engines here.
    """
    existing = {key for keys in fleet.world.existing.values() for key in keys}
    existing -= moved(pool, fleet)
    concerned = fleet.holders.with_others_than(existing)
    if not concerned:
        return
    for view in pool_engines(pool, fleet.world, fleet.links):
        link = fleet.links.get(view.uid) if view.uid in concerned else None
        names = orphans(view, fleet.settings.namespaces, existing)
        if link is None or not names:
            continue
        for adapter, served_name in names:
            try:
                await link.client.unload(
                    unload_request(adapter, served_name, drop_staged=True),
                    fleet.settings.load_timeout_seconds,
                )
            except EngineUnreachable:
                break  # the next pass tries again; the engine's health is in the status below
            except LorafleetError:
                continue  # requests still run on this one; it is hidden
        try:
            await link.refresh()
        except LorafleetError:
            continue


def moved(pool: EnginePool, fleet: Fleet) -> set[str]:
    """Return the adapters that are served well in pools of other operators that share no engine."""
    world = fleet.world
    others = [(key, each) for key, each in world.adapters.items() if not fleet.owns(key)]
    here = {pod.uid for pod in world.members(pool)} if others else set()
    found: set[str] = set()
    for key, adapters in others:
        other = world.pool(key)
        if other is not None and not here & {pod.uid for pod in world.members(other)}:
            found |= {known.key for known in adapters if known.settled}
    return found


def orphans(
    view: EngineView, namespaces: Collection[str], existing: Collection[str]
) -> list[tuple[str, str]]:
    """Return (adapter, served name) on the engine of adapters that are not in `existing`.

    Names without an owner in the `namespaces` that the operator serves (none: the whole cluster)
    were not loaded by it.
    """
    if view.problem or view.inventory is None:
        return []
    return sorted(
        {
            (entry.adapter, entry.served_name)
            for entry in view.inventory.loaded
            if entry.adapter
            and entry.adapter not in existing
            and (not namespaces or entry.adapter.partition("/")[0] in namespaces)
        }
    )


def pool_status(
    pool: EnginePool,
    engines: Sequence[EngineView],
    now: datetime | None = None,
    life: Life | None = None,
) -> EnginePoolStatus:
    """Return the status that the engines add up to. Pure."""
    now, life = now or datetime.now(UTC), life or Life()
    generation = pool.metadata.generation
    ready = [view for view in engines if view.takes_orders]
    plugin = [view for view in engines if view.health is EngineHealth.READY]
    due = life.recycled.due
    trouble_first = sorted(
        engines,
        key=lambda view: (
            view.health is EngineHealth.READY,
            view.pod.name not in due,
            view.pod.name,
        ),
    )
    conditions = [
        condition(type_, status, reason, message, generation=generation, now=now)
        for type_, (status, reason, message) in (
            (ConditionType.ENGINES_READY, _engines_ready(engines, pool.spec.base_model)),
            (ConditionType.PLUGIN_ACTIVE, _plugin_active(engines)),
        )
    ]
    return EnginePoolStatus(
        observed_generation=generation,
        total_engines=len(engines),
        ready_engines=len(ready),
        plugin_engines=len(plugin),
        engines_summary=f"{len(ready)}/{len(engines)}",
        engines=[
            _entry(view, life, pool.spec.base_model) for view in trouble_first[:MAX_STATUS_ENGINES]
        ],
        recycling=life.recycled.going,
        recycles=life.recycled.count,
        last_recycle=life.recycled.last,
        recycle_message=life.recycled.message,
        safe_point=life.recycled.safe_point,
        conditions=merge_conditions(pool.status.conditions, conditions),
    )


_REASONS = {
    EngineHealth.UNREACHABLE: Reason.ENGINE_UNREACHABLE,
    EngineHealth.REFUSED: Reason.ENGINE_REFUSED,
    EngineHealth.STARTING: Reason.ENGINES_STARTING,
}


def _engines_ready(engines: Sequence[EngineView], base_model: str) -> tuple[bool, Reason, str]:
    if not engines:
        return False, Reason.NO_MATCHING_ENGINES, "the selector finds no pods"
    bare = [view for view in engines if view.lacks_sidecar]
    if bare:
        more = f" (and {len(bare) - 1} more)" if len(bare) > 1 else ""
        text = f"engine {bare[0].pod.name}: {bare[0].message}{more}"
        return False, Reason.SIDECAR_MISSING, text
    for health, reason in _REASONS.items():
        found = [view for view in engines if view.health is health]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            text = found[0].message or "vLLM does not answer yet"
            return False, reason, f"engine {found[0].pod.name}: {text}{more}"
    strange = [view for view in engines if view.base_models and base_model not in view.base_models]
    if strange:
        more = f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""
        text = f"serves {strange[0].base_models[0]}, the pool's baseModel is {base_model}"
        return False, Reason.BASE_MODEL_MISMATCH, f"engine {strange[0].pod.name}: {text}{more}"
    return True, Reason.ENGINES_READY, f"{len(engines)} engines take adapters"


def _plugin_active(engines: Sequence[EngineView]) -> tuple[bool | None, Reason, str]:
    without = [view for view in engines if view.health is EngineHealth.STOCK]
    if without:
        more = f" (and {len(without) - 1} more)" if len(without) > 1 else ""
        text = without[0].message or "the plugin is not live"
        return False, Reason.PLUGIN_INACTIVE, f"engine {without[0].pod.name}: {text}{more}"
    if not any(view.health is EngineHealth.READY for view in engines):
        return None, Reason.WAITING, "no engine has answered yet"
    return True, Reason.PLUGIN_ACTIVE, "every engine that answers runs the plugin"


def _base_model(view: EngineView, wanted: str) -> str:
    """Return the name of what the engine serves: the pool's, if it is one of its names."""
    if wanted in view.base_models:
        return wanted
    return view.base_models[0] if view.base_models else ""


def _entry(view: EngineView, life: Life, base_model: str) -> PoolEngine:
    inventory = view.inventory
    traffic, why = life.states.get(view.pod.name, (EngineTraffic.UNKNOWN, ""))
    message = view.message or ("" if traffic is EngineTraffic.WARM else why)
    due = life.recycled.due.get(view.pod.name)
    entry = PoolEngine(
        pod_name=view.pod.name,
        engine=view.instance[-64:],
        health=view.health,
        message=message,
        base_model=_base_model(view, base_model)[:100],
        node=view.pod.node[:63],
        zone=view.zone[:63],
        tensor_parallel_size=view.profile.tensor_parallel_size if view.profile else 0,
        cordoned=view.cordoned,
        traffic=traffic,
        loads=loads(view),
        host_growth_per_load=growth(view),
        recycle_due=due.why[:128] if due else "",
        recycle_due_since=due.since if due else None,
    )
    if inventory is None:
        return entry
    return entry.model_copy(
        update={
            "max_lora_rank": inventory.max_lora_rank,
            "max_loras": inventory.max_loras,
            "max_cpu_loras": inventory.max_cpu_loras,
            "loaded": len(inventory.loaded),
            "arena_used_bytes": inventory.arena.used_bytes,
            "arena_limit_bytes": inventory.arena.limit_bytes,
        }
    )
