"""The plan of a pool between passes: what is looked at again, and what only then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.placement import AdapterDemand, Policy
from lorafleet_operator.pool_planner import PoolPlanner
from lorafleet_operator.world import KnownAdapter, World
from operator_builders import BASE, adapter, engine, known, loaded, pod, pool

if TYPE_CHECKING:
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.world import EngineView

GRACE = 60.0
MIB = 1 << 20


@dataclass
class Link:
    """What a connection has brought."""

    view: EngineView
    looks: int = 0

    def __getattr__(self, name: str) -> Any:
        if name == "inventory":
            self.looks += 1
        return {"digests": {}}.get(name) or getattr(self.view, name)

    def ill_for(self) -> float:
        return self.view.ill_for

    def away_for(self) -> float:
        return self.view.ill_for


class Pool:
    """A pool of engines, and its planner."""

    def __init__(self, *views: EngineView) -> None:
        self.links = {view.uid: Link(view) for view in views}
        self.pods: list[EnginePod] = [view.pod for view in views]
        self.planner = PoolPlanner()
        self.resource = pool()

    def look(self) -> None:
        world = World({"team-a": self.pods}, {}, {}, {}, set())
        self.planner.look_at_engines(self.resource, world, self.links, GRACE)  # type: ignore[arg-type]

    def place(self, key: str = "team-a/sql", **facts: Any) -> list[str]:
        self.look()
        wanted = {"base_model": BASE, "size_bytes": 2 * MIB, "policy": Policy.SPREAD, **facts}
        self.planner.plan.set_adapter(AdapterDemand(key, **wanted))
        self.planner.plan.settle()
        return list(self.planner.plan.entries[key].chosen)


def test_an_engine_is_looked_at_when_it_has_something_new_to_say_and_only_then() -> None:
    made = Pool(engine("e-0"), engine("e-1"))
    assert made.place() == ["e-0"]
    looks = made.links["uid-e-0"].looks
    made.links["uid-e-0"].view = engine("e-0", health=pb.ENGINE_HEALTH_REFUSED)
    assert made.place() == ["e-0"]
    assert made.links["uid-e-0"].looks == looks
    made.planner.engine_changed("e-0")
    assert made.place() == ["e-1"]


def test_pods_that_come_and_go_are_seen_once_the_pool_is_stale() -> None:
    made = Pool(engine("e-0"))
    assert made.place() == ["e-0"]
    made.pods[:] = [pod("e-1")]
    made.links["uid-e-1"] = Link(engine("e-1"))
    assert made.place() == ["e-0"]
    made.planner.stale = True
    assert made.place() == ["e-1"]


def test_another_selector_or_bound_of_the_pool_is_seen_at_once() -> None:
    made = Pool(engine("e-0", loaded()))
    assert made.place() == ["e-0"]
    made.resource = pool(hostMemoryBudget="1Mi")
    assert made.place() == []
    made.resource = pool(selector={"matchLabels": {"app": "other"}})
    made.look()
    assert made.planner.members == {}


def test_an_engine_that_falls_ill_keeps_its_place_until_the_grace_is_over_without_any_event() -> (
    None
):
    made = Pool(engine("e-0"), engine("e-1"))
    assert made.place() == ["e-0"]
    starting = engine("e-0", health=pb.ENGINE_HEALTH_STARTING, ill_for=1.0)
    made.links["uid-e-0"].view = starting
    made.planner.engine_changed("e-0")
    assert made.place() == ["e-0"]
    made.links["uid-e-0"].view = replace(starting, ill_for=GRACE + 1)
    assert made.place() == ["e-1"]
    made.links["uid-e-0"].view = engine("e-0")
    made.planner.engine_changed("e-0")
    assert made.place() == ["e-1"], "what has moved does not move back"


def test_labels_of_a_pod_say_its_zone_and_whether_it_is_cordoned() -> None:
    made = Pool(engine("e-0"), engine("e-1"), engine("e-2"))
    zones = {"e-0": "a", "e-1": "a", "e-2": "b"}
    made.pods = [
        replace(each, labels=(*each.labels, ("topology.kubernetes.io/zone", zones[each.name])))
        for each in made.pods
    ]
    assert made.place(replicas=2) == ["e-0", "e-2"]
    made.pods[2] = replace(
        made.pods[2], labels=(*made.pods[2].labels, ("lorafleet.dev/cordoned", "true"))
    )
    made.planner.stale = True
    assert made.place("team-a/other", replicas=3) == ["e-1", "e-0"]
    assert made.place(replicas=2) == ["e-0", "e-2"], "it keeps what it has"


def test_adapters_are_looked_through_when_their_number_is_another_and_their_own_passes_tell_more() -> (
    None
):
    planner = PoolPlanner()
    here = [known("a"), known("b")]
    planner.look_at_adapters(here)
    assert set(planner.plan.entries) == {"team-a/a", "team-a/b"}
    planner.plan.set_adapter(AdapterDemand("team-a/a", size_bytes=5))
    planner.note(here[0])
    assert planner.plan.entries["team-a/a"].demand.size_bytes == 5
    planner.look_at_adapters(here[:1])
    assert set(planner.plan.entries) == {"team-a/a"}


def test_an_adapter_on_its_way_out_holds_no_place_and_no_name() -> None:
    planner = PoolPlanner()
    planner.look_at_adapters([known("a", servedName="shared"), known("b", servedName="shared")])
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") == "team-a/a"
    going = replace(known("a", servedName="shared"), deleting=True)
    planner.note(going)
    assert set(planner.plan.entries) == {"team-a/b"}
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") is None
    planner.look_at_adapters([going, known("b", servedName="shared")])
    assert set(planner.plan.entries) == {"team-a/b"}


def test_of_two_pools_that_share_engines_the_older_adapter_owns_a_name_in_both() -> None:
    one, other = PoolPlanner(), PoolPlanner()
    assert one.claim("team-a/b", "shared", "2026-01-02", [other]) is None
    assert other.claim("team-a/a", "shared", "2026-01-01", [one]) is None
    assert one.claim("team-a/b", "shared", "2026-01-02", [other]) == "team-a/a"
    other.forget("team-a/a")
    assert one.claim("team-a/b", "shared", "2026-01-02", [other]) is None
    # Deleted and made again, it is the younger one.
    assert other.claim("team-a/a", "shared", "2026-01-03", [one]) == "team-a/b"


OLD, YOUNG = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"


def test_who_holds_a_name_keeps_it_against_older_ones_that_are_renamed_to_it() -> None:
    one, other = PoolPlanner(), PoolPlanner()
    one.look_at_adapters([known("young", YOUNG, servedName="n"), known("old", OLD)])
    assert one.claim("team-a/young", "n", YOUNG) is None
    one.hold("team-a/young")
    assert one.claim("team-a/old", "n", OLD) == "team-a/young"
    assert other.claim("team-a/elsewhere", "n", OLD, [one]) == "team-a/young"
    assert one.claim("team-a/young", "n", YOUNG, [other]) is None, "not asked for again: it holds"
    # Another name is not held by having held this one, and the way back begins anew.
    assert one.claim("team-a/young", "m", YOUNG) is None
    assert one.claim("team-a/young", "n", YOUNG) == "team-a/old"


def test_who_is_told_to_hold_a_name_by_its_status_holds_it_after_a_restart_too() -> None:
    spec = {"servedName": "n"}
    said = {"servedName": "n", "pool": "team-a/pool"}
    for status, owner in (
        (said, "team-a/young"),
        ({**said, "servedName": "m"}, "team-a/old"),
        ({**said, "pool": "team-a/other"}, "team-a/old"),
        ({}, "team-a/old"),
    ):
        young = KnownAdapter.of(adapter("young", status=status, **spec), YOUNG)
        planner = PoolPlanner()
        planner.look_at_adapters([young, known("old", OLD, **spec)])
        assert planner.owner("n") == owner, status
    both = [
        KnownAdapter.of(adapter(n, status=said, **spec), c) for n, c in (("a", YOUNG), ("b", OLD))
    ]
    planner = PoolPlanner()
    planner.look_at_adapters(both)
    assert planner.owner("n") == "team-a/b", "of two that held it in their pools the older keeps it"


def test_who_was_renamed_and_had_no_pass_since_is_in_nobodys_way() -> None:
    planner = PoolPlanner()
    planner.look_at_adapters([known("a", YOUNG, servedName="n")])
    planner.hold("team-a/a")
    assert planner.claim("team-a/b", "n", YOUNG) == "team-a/a"
    assert planner.claim("team-a/b", "n", YOUNG, but={"team-a/a"}) is None


def test_an_adapter_that_may_not_be_here_has_no_place_and_no_name() -> None:
    planner = PoolPlanner()
    planner.look_at_adapters(
        [known("a", servedName="shared"), known("b", servedName="shared")],
        lambda each: each.key == "team-a/a",
    )
    assert set(planner.plan.entries) == {"team-a/b"}
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") is None
    assert planner.claim("team-a/a", "shared", "2025-01-01T00:00:00Z") is None, "granted since"
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") == "team-a/a"
    planner.hold("team-a/a")
    planner.bar("team-a/a", "2025-01-01T00:00:00Z")
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") is None
