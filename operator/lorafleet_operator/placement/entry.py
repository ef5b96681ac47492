"""One adapter in the plan: what it wants, and where it is to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .demands import Policy

if TYPE_CHECKING:
    from .demands import AdapterDemand


@dataclass(slots=True, eq=False)
class Entry:
    """One adapter in the plan. `chosen`: engine -> why."""

    demand: AdapterDemand
    chosen: dict[str, str] = field(default_factory=dict)
    guests: frozenset[str] = frozenset()
    """Of these, those beyond its replicas, where requests have asked for it."""

    @property
    def seeks(self) -> bool:
        """Whether it would take one more engine."""
        return self.short or bool(self.asked)

    @property
    def short(self) -> bool:
        """Whether it has fewer engines than its policy wants."""
        limit = self.demand.limit
        if limit is None:
            return self.demand.policy is Policy.ALL
        return len(self.chosen) - len(self.guests) < limit

    @property
    def asked(self) -> frozenset[str]:
        """Where requests wait for it in vain."""
        return self.demand.requested - self.chosen.keys()
