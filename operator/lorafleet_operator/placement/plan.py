"""plan(): the engines of every adapter of a pool, from nothing but the facts.

The same facts give the same plan, in whatever order they come and whatever was planned before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .explanation import blocked, explanation, wanted
from .planner import Planner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lorafleet_operator.api.conditions import Reason

    from .demands import AdapterDemand
    from .engines import EngineSnapshot
    from .explanation import Explanation
    from .tenancy import Tenancy


@dataclass(frozen=True)
class PlacementPlan:
    """What should be where. Adapters by key, engines by pod name, both sorted.

    `assignments` has every adapter, also those with no engine; `blocked` those that get fewer
    engines than `wanted` says, with the reason of condition Placed; `why` says for each engine
    why it was chosen or not.
    """

    assignments: Mapping[str, tuple[str, ...]]
    wanted: Mapping[str, int]
    blocked: Mapping[str, tuple[Reason, str]]
    why: Mapping[str, Explanation]


def plan(
    adapters: Iterable[AdapterDemand],
    engines: Iterable[EngineSnapshot],
    *,
    tenancy: Tenancy | None = None,
    explain: Collection[str] | None = None,
) -> PlacementPlan:
    """Return the engines of every adapter of one pool.

    adapters: every adapter of the pool that is not being deleted, each key once. engines: every engine of the pool, each
    pod name once. tenancy: the pool's tenants. explain: keys to explain in `why`; None explains all.
    """
    planner = planned(adapters, engines, tenancy)
    entries = sorted(planner.entries.items())
    want = {key: wanted(planner, entry) for key, entry in entries}
    return PlacementPlan(
        assignments={key: tuple(sorted(entry.chosen)) for key, entry in entries},
        wanted=want,
        blocked={
            key: block for key, entry in entries if (block := blocked(planner, entry, want[key]))
        },
        why={
            key: explanation(planner, key)
            for key, _ in entries
            if explain is None or key in explain
        },
    )


def planned(
    adapters: Iterable[AdapterDemand],
    engines: Iterable[EngineSnapshot],
    tenancy: Tenancy | None = None,
) -> Planner:
    """Return the planner of one pool, settled."""
    planner = Planner()
    if tenancy is not None:
        planner.set_tenancy(tenancy)
    for engine in engines:
        planner.set_engine(engine)
    for adapter in adapters:
        planner.set_adapter(adapter)
    planner.settle()
    return planner
