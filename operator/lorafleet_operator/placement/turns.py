"""In which order adapters are served when there is not room for all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .demands import AdapterDemand

Rank = tuple[bool, bool, int, int, str]
"""Whether it keeps no place of its own, whether it is there on demand, lower priority, turn among its
tenant's, key: smaller first."""


def in_turn(demands: Iterable[AdapterDemand], placed: Mapping[str, int]) -> dict[str, Rank]:
    """Return the rank of each adapter by its key.

    placed: how many adapters of each tenant have engines already. A tenant with few is served
    before one with many, and those of a kind take turns: many adapters of one tenant cannot
    starve the few of another. Among one tenant's the oldest come first.
    """
    ranks: dict[str, Rank] = {}
    served = Counter(placed)
    for demand in sorted(demands, key=lambda d: (*_class_of(d), d.created, d.key)):
        tenant = demand.tenant
        ranks[demand.key] = (*_class_of(demand), served[tenant], demand.key)
        served[tenant] += 1
    return ranks


def _class_of(demand: AdapterDemand) -> tuple[bool, bool, int]:
    return (not demand.reserved, demand.on_demand, -demand.priority)
