"""Small fleets for property tests: engines and adapters that compete for room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Policy,
    Residency,
    Tenancy,
    TenantRule,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lorafleet_operator.placement.entry import Entry

KEYS = [f"{tenant}/{letter}" for tenant in "tu" for letter in "abcdef"]
PODS = [f"p-{number}" for number in range(6)]
DIGESTS = ["sha256:1", "sha256:2"]
CHOSEN_BY_COUNT = (Policy.SPREAD, Policy.BIN_PACK)


def tenancy(*rules: TenantRule) -> Tenancy:
    """Each rule is for the namespace of its name; `*` for all others."""
    by_name = {rule.name: rule for rule in rules}
    return Tenancy(rules, lambda namespace: by_name.get(namespace) or by_name.get("*"))


@st.composite
def engine_lists(draw: st.DrawFn, *, least: int = 0) -> list[EngineSnapshot]:
    names = draw(st.lists(st.sampled_from(PODS[:5]), unique=True, min_size=least, max_size=5))
    return [draw(engines_named(name)) for name in names]


def engines_named(name: str) -> st.SearchStrategy[EngineSnapshot]:
    # Mostly engines that could take something, or nothing would ever compete for room.
    limit = st.integers(8, 20)
    return st.builds(
        EngineSnapshot,
        pod_name=st.just(name),
        node=st.sampled_from(["", "n-0", "n-1"]),
        zone=st.sampled_from(["", "z-0", "z-1"]),
        health=st.sampled_from([EngineHealth.READY] * 6 + list(EngineHealth)),
        base_models=st.sampled_from([(), ("x",), ("x", "y")]),
        tensor_parallel_size=st.sampled_from([1, 1, 2]),
        max_lora_rank=st.sampled_from([0, 8, 16]),
        max_loras=st.integers(1, 4),
        max_cpu_loras=st.integers(0, 5),
        loaded=st.frozensets(st.sampled_from(KEYS), max_size=4),
        staged=st.frozensets(st.sampled_from(DIGESTS)),
        arena_limit_bytes=limit,
        arena_used_bytes=limit,
        arena_in_use_bytes=limit,
        arena_largest_free_bytes=limit,
        budget_bytes=st.none() | limit,
        max_adapters=st.none() | st.integers(1, 4),
        cordoned=st.sampled_from([False, False, False, True]),
    )


def demands_named(key: str) -> st.SearchStrategy[AdapterDemand]:
    return st.builds(
        AdapterDemand,
        key=st.just(key),
        base_model=st.sampled_from(["x", "x", "x", "y"]),
        size_bytes=st.none() | st.integers(2, 12),
        rank=st.none() | st.sampled_from([4, 8, 8, 16]),
        policy=st.sampled_from(Policy),
        replicas=st.integers(1, 4),
        residency=st.sampled_from([*Residency, Residency.SHARED]),
        priority=st.sampled_from([0, 0, 0, 1, 2]),
        created=st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
        digest=st.sampled_from(["", *DIGESTS]),
        current=st.frozensets(st.sampled_from(PODS[:5]), max_size=3),
        refused=st.dictionaries(st.sampled_from(PODS[:5]), st.just("no"), max_size=1),
        requested=st.frozensets(st.sampled_from(PODS[:5]), max_size=2),
        idle=st.frozensets(st.sampled_from(PODS[:5]), max_size=2),
        visits=st.frozensets(st.sampled_from(PODS[:5]), max_size=2),
    )


@st.composite
def adapter_lists(draw: st.DrawFn) -> list[AdapterDemand]:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=10))
    return [draw(demands_named(key)) for key in keys]


def in_one_piece(engines: Sequence[EngineSnapshot]) -> list[EngineSnapshot]:
    """Return the engines with arenas where every piece is large enough.

    Elsewhere somebody who waits for a piece gets it when the plan has been carried out, for what
    went has left one: then that moves others.
    """
    return [replace(e, arena_used_bytes=1, arena_in_use_bytes=0) for e in engines]


def carried_out(
    adapters: Sequence[AdapterDemand],
    engines: Sequence[EngineSnapshot],
    entries: Mapping[str, Entry],
) -> tuple[list[AdapterDemand], list[EngineSnapshot]]:
    """Return the fleet after everybody did what the plan says, and every request was answered.

    Engines know their guests. In an arena, what comes lies in the largest free piece, and what
    goes lay beside it.
    """
    sizes = {a.key: a.size_bytes or 0 for a in adapters}

    def after(e: EngineSnapshot) -> EngineSnapshot:
        there = frozenset(key for key, entry in entries.items() if e.pod_name in entry.chosen)
        left = sum(sizes.get(key, 0) for key in e.loaded) - sum(sizes[key] for key in there)
        piece = max(0, e.arena_largest_free_bytes + left)
        return replace(e, loaded=there, arena_largest_free_bytes=piece)

    answered = [replace(a, requested=frozenset(), idle=frozenset()) for a in adapters]
    moved = [
        replace(a, current=frozenset(entry.chosen), visits=entry.guests)
        for a in answered
        if (entry := entries[a.key])
    ]
    return moved, [after(e) for e in engines]


def over_capacity(
    engines: Sequence[EngineSnapshot],
    adapters: Sequence[AdapterDemand],
    assignments: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return what is wrong with the assignments, a line for each; reckoned anew, not by the plan."""
    wrong = []
    for e in engines:
        here = [a for a in adapters if e.pod_name in assignments[a.key]]
        pinned = sum(a.residency is Residency.GPU for a in here)
        reserved = sum(a.residency is not Residency.SHARED for a in here)
        limits = {
            "arena bytes": sum(a.size_bytes or 0 for a in here)
            <= min(e.arena_limit_bytes, e.budget_bytes or e.arena_limit_bytes),
            "slots": not pinned or pinned < e.max_loras,
            "max_cpu_loras": not reserved or not e.max_cpu_loras or reserved < e.max_cpu_loras,
            "max adapters": len(here) <= (e.max_adapters or len(here)),
            "health": not here or e.healthy,
            "base model": all(not e.base_models or a.base_model in e.base_models for a in here),
            "rank": all(not e.max_lora_rank or (a.rank or 0) <= e.max_lora_rank for a in here),
            "cordon": all(
                not e.cordoned or e.pod_name in a.current or a.key in e.loaded for a in here
            ),
        }
        wrong += [f"{e.pod_name}: {name}" for name, right in limits.items() if not right]
    return wrong
