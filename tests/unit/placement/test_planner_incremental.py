"""Planner: a plan that is kept up to date is the plan that the facts lead to, change by change."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lorafleet_operator.placement import AdapterDemand, EngineSnapshot, Planner, planned
from placement_fleets import (
    KEYS,
    PODS,
    adapter_lists,
    carried_out,
    demands_named,
    engine_lists,
    engines_named,
    over_capacity,
)


def chosen(planner: Planner) -> dict[str, tuple[list[str], frozenset[str]]]:
    """The engines of each adapter, and which of them have it as a guest."""
    return {key: (sorted(e.chosen), e.guests) for key, e in planner.entries.items()}


class Changes(RuleBasedStateMachine):
    """Facts change one by one; what the planner chose is carried out in between or not."""

    rounds = 1
    """After how often carrying out what was chosen nothing is left to change."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = Planner()
        self.engines: dict[str, EngineSnapshot] = {}
        self.adapters: dict[str, AdapterDemand] = {}
        self.was: dict[str, tuple[str, ...]] = {}

    @initialize(adapters=adapter_lists(), engines=engine_lists(least=2))
    def a_fleet_is_there(
        self, adapters: list[AdapterDemand], engines: list[EngineSnapshot]
    ) -> None:
        for adapter in adapters:
            self.an_adapter_comes_or_changes(adapter)
        for engine in engines:
            self.an_engine_comes_or_changes(engine)

    def settle(self) -> None:
        changed = self.planner.settle()
        now = self.assignments()
        moved = {key for key in now if now[key] != self.was.get(key, ())}
        assert moved == changed
        self.was = now

    def assignments(self) -> dict[str, tuple[str, ...]]:
        entries = self.planner.entries
        return {key: tuple(sorted(entry.chosen)) for key, entry in sorted(entries.items())}

    @rule(engine=st.sampled_from(PODS).flatmap(engines_named))
    def an_engine_comes_or_changes(self, engine: EngineSnapshot) -> None:
        engine = self.arena(engine)
        self.engines[engine.pod_name] = engine
        self.planner.set_engine(engine)
        self.settle()

    def arena(self, engine: EngineSnapshot) -> EngineSnapshot:
        """Every piece is large enough: what is not in use can be evicted."""
        return replace(engine, arena_used_bytes=1, arena_in_use_bytes=0)

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def an_engine_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engines)))
        del self.engines[name]
        self.planner.drop_engine(name)
        self.settle()

    @rule(adapter=st.sampled_from(KEYS).flatmap(demands_named))
    def an_adapter_comes_or_changes(self, adapter: AdapterDemand) -> None:
        self.adapters[adapter.key] = adapter
        self.planner.set_adapter(adapter)
        self.settle()

    @precondition(lambda self: self.adapters)
    @rule(data=st.data())
    def an_adapter_goes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.adapters)))
        del self.adapters[key]
        self.planner.drop_adapter(key)
        self.settle()

    @rule()
    def everybody_does_what_the_plan_says(self) -> None:
        for _ in range(self.rounds):
            before = self.assignments()
            self.carry_out()
            if self.assignments() == before:
                return
        raise AssertionError("what was carried out is changed again")

    def carry_out(self) -> None:
        adapters, engines = carried_out(
            list(self.adapters.values()), list(self.engines.values()), self.planner.entries
        )
        self.adapters = {a.key: a for a in adapters}
        self.engines = {e.pod_name: e for e in engines}
        for adapter in adapters:
            self.planner.set_adapter(adapter)
        for engine in engines:
            self.planner.set_engine(engine)
        self.settle()

    @invariant()
    def no_engine_is_over_capacity(self) -> None:
        here = list(self.engines.values())
        # A cordoned engine keeps also what only the planner knows of.
        open_ = [e for e in here if not e.cordoned]
        assert over_capacity(open_, list(self.adapters.values()), self.assignments()) == []

    @invariant()
    def a_planner_that_starts_when_it_was_carried_out_comes_to_the_same_plan(self) -> None:
        adapters, engines = list(self.adapters.values()), list(self.engines.values())
        there = self.planner
        for _ in range(self.rounds):
            adapters, engines = carried_out(adapters, engines, there.entries)
            before, there = there, planned(adapters, engines)
            if chosen(before) == chosen(there):
                return
        raise AssertionError("a planner that starts changes what was carried out")

    @invariant()
    def the_books_are_right(self) -> None:
        for name, carrier in self.planner.board.carriers.items():
            held = [e.demand for e in self.planner.entries.values() if name in e.chosen]
            assert set(carrier.adapters) == {demand.key for demand in held}
            assert carrier.load.adapters == len(held)
            assert carrier.load.size_bytes == sum(d.size_bytes or 0 for d in held)
            assert carrier.position == carrier.reckon()


class Fragments(Changes):
    """Who waits for room in one piece gets it when somebody has left, not when that is decided."""

    rounds = 4

    def arena(self, engine: EngineSnapshot) -> EngineSnapshot:
        """What is loaded is in use, and no piece is larger than what that leaves."""
        there = sum(a.size_bytes or 0 for key, a in self.adapters.items() if key in engine.loaded)
        free = max(0, engine.arena_limit_bytes - there)
        piece = min(free, engine.arena_largest_free_bytes)
        return replace(engine, arena_largest_free_bytes=piece)


TestChanges = Changes.TestCase
TestFragments = Fragments.TestCase
TestChanges.settings = TestFragments.settings = settings(
    deadline=None,
    max_examples=60,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
