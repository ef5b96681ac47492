"""What the agent counts for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class AgentCounters:
    """Totals since this process started."""

    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Finished operations by (load | unload | restore | awaken, "ok" or the error's reason)."""

    operation_seconds: Counter[str] = field(default_factory=Counter)
    """Seconds spent in finished operations, waiting for the turn and for drains included."""

    engine_starts: int = 0
    """Engine instances seen for the first time."""

    engine_deaths: int = 0
    """Engine instances that ended while they loaded a revision."""

    def finished(self, operation: str, outcome: str, seconds: float) -> None:
        """Count one finished operation."""
        self.operations[operation, outcome] += 1
        self.operation_seconds[operation] += seconds  # type: ignore[assignment]
