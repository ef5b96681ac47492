"""From an adapter, its pool and a pass's facts to how it is to be routed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import RoutingStatus
from lorafleet_operator.cluster.owned import NotWritten, difference
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.pool_pass import with_routing
from lorafleet_operator.report import report
from lorafleet_operator.route import intended
from lorafleet_operator.routing.objects import pool_service
from operator_builders import DIGEST, FINGERPRINT, adapter, engine, loaded, pool, staged

NOW = datetime(2026, 1, 2, tzinfo=UTC)
GATEWAY = {"gateway": {"name": "front"}, "hostname": "sql.example"}


def facts(
    routing: dict[str, Any], pool_routing: dict[str, Any] | None = None, **more: Any
) -> Facts:
    found = Facts(adapter(routing=routing, **more), "2026-01-01T00:00:00Z")
    found.pool = pool(routing=pool_routing or {}, enginePort=9000)
    found.fingerprint = FINGERPRINT
    found.engines = [engine("engine-0", loaded(), staged=[staged()])]
    found.placed = Placed(("engine-0",), 1)
    return found


WISHES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "nothing is said": ({}, {}, False),
    "the adapter asks": ({"service": True}, {}, True),
    "the pool asks": ({}, {"adapterServices": True}, True),
    "the adapter wants none": ({"service": False}, {"adapterServices": True}, False),
    "a route brings its Service": ({"service": False, "httpRoute": GATEWAY}, {}, True),
}


@pytest.mark.parametrize("case", WISHES)
def test_who_is_routed(case: str) -> None:
    wish, default, expected = WISHES[case]
    found = facts(wish, default)
    assert (intended(found, found.adapter.status) is not None) is expected


def test_what_is_told_of_an_adapter() -> None:
    found = facts({"httpRoute": GATEWAY}, rollout={"canary": {"trafficPercent": 10}})
    intent = intended(found, found.adapter.status)
    assert intent is not None
    assert (intent.key, intent.served_name, intent.port) == ("team-a/sql", "team-a/sql", 9000)
    assert intent.split
    assert intent.http_route is not None
    assert (intent.http_route.gateway_namespace, intent.http_route.hostname) == (
        "team-a",
        "sql.example",
    )


def test_who_has_lost_the_name_has_no_route_that_matches_it() -> None:
    found = facts({"httpRoute": GATEWAY})
    found.placed = Placed(blocked=(Reason.NAME_TAKEN, "taken"), lost_name=True)
    intent = intended(found, found.adapter.status)
    assert intent is not None
    assert intent.http_route is None
    assert intent.leaving == {"uid-engine-0"}


def test_what_is_not_granted_is_not_routed_and_is_not_kept_by_a_pause() -> None:
    found = facts({"httpRoute": GATEWAY})
    found.adapter.metadata.annotations["lorafleet.dev/paused"] = "true"
    assert found.paused
    assert found.routing_unknown
    found.forbidden, found.pool = (Reason.NOT_GRANTED, "no grant"), None
    assert not found.paused
    assert not found.routing_unknown
    assert intended(found, found.adapter.status) is None


def test_an_engine_that_is_about_to_let_go_is_told() -> None:
    found = facts({"service": True})
    found.engines.append(engine("engine-1", loaded(), staged=[staged()]))
    intent = intended(found, found.adapter.status)
    assert intent is not None
    assert intent.leaving == {"uid-engine-1"}


def test_a_trial_and_its_share_are_told() -> None:
    found = facts({"httpRoute": GATEWAY}, rollout={"canary": {"trafficPercent": 10}})
    status = {"canary": {"digest": DIGEST, "trafficPercent": 10}}
    trial = intended(found, adapter(status=status).status)
    assert trial is not None
    assert (trial.trial, trial.percent) == (DIGEST, 10)
    status["canary"] |= {"promoted": True}
    promoted = intended(found, adapter(status=status).status)
    assert promoted is not None
    assert (promoted.trial, promoted.percent) == (DIGEST, None)


def routed(found: Facts) -> list[tuple[str, str, str]]:
    status = report(found, NOW).status
    return [(c.status, c.reason, c.message) for c in status.conditions if c.type == "Routed"]


def test_the_status_tells_what_there_is_and_what_is_wrong_until_nothing_is_wanted() -> None:
    found = facts({"service": True})
    found.routing = RoutingStatus(service="lora-sql")
    said = report(found, NOW)
    assert routed(found) == [("True", "Routed", "requests find the engines")]
    assert said.status.routing == found.routing
    assert not said.retry
    found.routing_problem = NotWritten(Reason.ROUTE_REFUSED, "Service lora-sql: forbidden")
    assert routed(found) == [("False", "RouteRefused", "Service lora-sql: forbidden")]
    assert report(found, NOW).retry
    found.routing_problem = NotWritten(Reason.GATEWAY_API_MISSING, "no HTTPRoute")
    assert not report(found, NOW).retry

    later = facts({}, status=said.status.to_api())
    assert routed(later) == []
    assert report(later, NOW).status.routing is None
    later.pool = None  # nobody can tell now
    assert routed(later) == [("True", "Routed", "requests find the engines")]
    assert report(later, NOW).status.routing == found.routing


def test_a_pool_tells_of_its_own_service() -> None:
    mine, status = pool(), pool().status
    assert with_routing(mine, status, None, None, NOW).conditions == []
    there = with_routing(mine, status, RoutingStatus(service="lorapool-pool"), None, NOW)
    assert [(c.type, c.status) for c in there.conditions] == [("Routed", "True")]
    assert with_routing(mine, there, None, None, NOW) == status


def test_a_changed_selector_loses_what_it_does_not_want_any_more() -> None:
    before = pool_service(pool(selector={"matchLabels": {"app": "vllm", "name": "a"}}))
    after = pool_service(pool(selector={"matchLabels": {"app": "vllm", "tier": "b"}}))
    assert difference(before, before) == {}
    assert difference(before, after) == {"spec": {"selector": {"tier": "b", "name": None}}}


def test_what_the_server_has_added_is_no_difference() -> None:
    wanted = {"spec": {"ports": [{"name": "http", "port": 80}]}, "endpoints": []}
    seen = {"spec": {"ports": [{"name": "http", "port": 80, "nodePort": 0}], "type": "ClusterIP"}}
    assert difference({**seen, "endpoints": None}, wanted) == {}
    other = {"spec": {"ports": [{"name": "http", "port": 81}]}}
    assert difference(seen, other) == other
