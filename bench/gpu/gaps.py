"""Times between tokens, told in milliseconds."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0..1] of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def gaps(times: Sequence[float]) -> list[float]:
    """Return the seconds between consecutive moments."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def summary(seconds: Iterable[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and longest of `seconds`, in milliseconds."""
    found = [value * 1e3 for value in seconds]
    if not found:
        return {"count": 0}
    return {
        "count": len(found),
        "p50_ms": percentile(found, 0.5),
        "p99_ms": percentile(found, 0.99),
        "max_ms": max(found),
    }


def median(values: Sequence[float]) -> float:
    """Return the median, the lower one of an even number."""
    return percentile(values, 0.5)
