"""The step of a pass that says how requests find the adapter's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator import rollout
from lorafleet_operator.api.v1alpha1 import RoutingStatus
from lorafleet_operator.cluster.owned import ROUTE, NotWritten
from lorafleet_operator.routing.endpoints import HttpRoute, Intent
from lorafleet_operator.routing.names import Role, service_name
from lorafleet_operator.routing.objects import pool_service

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter, LoRAAdapterStatus
    from lorafleet_operator.cluster.owned import Key
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet


async def route(facts: Facts, fleet: Fleet, status: LoRAAdapterStatus | None = None) -> None:
    """Make the adapter's Services and HTTPRoute what they should be, or take them away.

    `status`: what the pass is about to say, once it knows.
    """
    if facts.routing_unknown:
        return
    intent = intended(facts, status or facts.adapter.status)
    if intent is None:
        facts.routing_problem = await withdraw(facts.adapter, fleet)
        facts.routing = facts.adapter.status.routing if facts.routing_problem else None
        return
    gone = () if intent.http_route else _said_routes(facts.adapter)
    problem = await fleet.router.show(intent, gone)
    name = service_name(Role.ADAPTER, intent.name)
    # What could not be taken away is still there, and the status alone knows of it.
    there = intent.http_route is not None or bool(gone and problem)
    facts.routing = RoutingStatus(service=name, http_route=name if there else "")
    facts.routing_problem = problem


async def route_pool(
    pool: EnginePool, fleet: Fleet
) -> tuple[RoutingStatus | None, NotWritten | None]:
    """Keep the pool's own Service, or take it away; return its name and what was refused."""
    owned = fleet.router.owned
    try:
        if pool.spec.routing.service:
            body = pool_service(pool)
            said = RoutingStatus(service=body["metadata"]["name"])
            await owned.put(body)
            return said, None
        for key in list(owned.of(pool.metadata.uid)):
            await owned.remove(key)
    except NotWritten as error:
        return RoutingStatus(service=service_name(Role.POOL, pool.metadata.name)), error
    return None, None


async def withdraw(adapter: LoRAAdapter, fleet: Fleet) -> NotWritten | None:
    """Take away what leads requests to the adapter's engines; return what could not be."""
    metadata, said = adapter.metadata, adapter.status.routing
    if said is None and not fleet.router.owned.of(metadata.uid):
        return None
    return await fleet.router.withdraw(adapter.key, metadata.uid, _said_routes(adapter))


def _said_routes(adapter: LoRAAdapter) -> list[Key]:
    """Return the HTTPRoute that the status names: no watch tells of it after a restart."""
    said = adapter.status.routing
    return (
        [(ROUTE, adapter.metadata.namespace, said.http_route)] if said and said.http_route else []
    )


def intended(facts: Facts, status: LoRAAdapterStatus) -> Intent | None:
    """Return how the adapter is to be routed; None if it wants no Service and no route. Pure."""
    adapter, pool = facts.adapter, facts.pool
    wish, metadata = adapter.spec.routing, adapter.metadata
    if pool is None:
        return None
    default = pool.spec.routing.adapter_services if wish.service is None else wish.service
    if not default and wish.http_route is None:
        return None
    wanted = facts.wanted()
    lost_name = facts.placed.lost_name if facts.placed else False
    retired = rollout.to_retire(wanted, lost_name=lost_name)
    leaving = {uid for uid, name in retired if name == adapter.served_name}
    # A pod without the readiness gate stays Ready while it is drained or recycled.
    leaving |= {v.uid for v in facts.engines if v.serves(facts.key) and not facts.may_answer(v)}
    trial, canary = status.canary, adapter.spec.rollout.canary
    return Intent(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        served_name=adapter.served_name,
        port=pool.spec.engine_port,
        leaving=frozenset(leaving) | frozenset(rollout.to_make_room(wanted)),
        trial=trial.digest if trial else "",
        percent=trial.traffic_percent if trial and not trial.promoted else None,
        split=bool(wish.http_route and canary and canary.traffic_percent),
        # A route matches by the name, and who has lost that must not take its owner's requests.
        http_route=None if lost_name else _http_route(adapter),
    )


def _http_route(adapter: LoRAAdapter) -> HttpRoute | None:
    wish = adapter.spec.routing.http_route
    if wish is None:
        return None
    return HttpRoute(
        gateway=wish.gateway.name,
        gateway_namespace=wish.gateway.namespace or adapter.metadata.namespace,
        section=wish.gateway.section_name or "",
        hostname=wish.hostname or "",
        model_header=wish.model_header or "",
    )
