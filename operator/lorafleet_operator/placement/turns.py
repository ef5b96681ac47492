"""In which order adapters are served when there is not room for all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .demands import AdapterDemand

Rank = tuple[bool, int, int, str]
"""Whether it keeps no place of its own, lower priority, turn among its tenant's, key: smaller first."""


def in_turn(demands: Iterable[AdapterDemand], placed: Mapping[str, int]) -> dict[str, Rank]:
    """Return the rank of each adapter by its key.

    placed: how many adapters of each tenant have engines already. A tenant with few is served
    before one with many, and those of a kind take turns: many adapters of one tenant cannot
    starve the few of another. Among one tenant's the oldest come first.
    """
    ranks: dict[str, Rank] = {}
    served = Counter(placed)
    for demand in sorted(demands, key=lambda d: (not d.reserved, -d.priority, d.created, d.key)):
        tenant = demand.tenant
        ranks[demand.key] = (not demand.reserved, -demand.priority, served[tenant], demand.key)
        served[tenant] += 1
    return ranks
