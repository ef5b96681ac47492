"""Values as Grafana writes them, and the names of series."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SUFFIX = {"Bps": "/s", "ops": " ops/s", "reqps": " req/s"}


def written(value: float, unit: str) -> str:
    """Return a value with its unit."""
    if unit in ("bytes", "Bps"):
        size, step = float(value), 0
        while abs(size) >= 1024 and step < len(_BINARY) - 1:
            size, step = size / 1024, step + 1
        return f"{_short(size)} {_BINARY[step]}{_SUFFIX.get(unit, '')}"
    if unit == "percentunit":
        return f"{_short(100 * value)}%"
    if unit == "s":
        return _seconds(value)
    return f"{_short(value)}{_SUFFIX.get(unit, '')}"


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return what a series is called."""
    if not template:
        return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "value"
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), template)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    for least, factor, name in ((60, 1 / 60, "min"), (1, 1, "s"), (0, 1000, "ms")):
        if abs(value) >= least:
            return f"{_short(value * factor)} {name}"
    return "0 s"
