"""Draws the figures of scale.json: what an adapter costs in fleets of different sizes.

    python bench/fleet/plot.py [bench/fleet/results/scale.json] [docs/fleet-scale.png]

Each panel has a bar for each fleet, from zero, so that flat is flat. Needs Pillow.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "bench"))

import bars

if TYPE_CHECKING:
    from bars import Panel
    from PIL import Image

_RESULTS = _ROOT / "bench" / "fleet" / "results" / "scale.json"
_PICTURE = _ROOT / "docs" / "fleet-scale.png"
COLOUR = "#2f7ed8"
START_SECONDS = 3.0
"""Processor time of an operator's start that has no part in any adapter."""


def panels(runs: list[dict[str, Any]]) -> list[Panel]:
    """Return what each panel shows."""
    found: list[Panel] = []
    for title, form, value in (
        ("From cold, unpolled: processor time for each adapter", "{:.1f} ms", _unpolled),
        ("From cold, each source looked at once a minute: the same", "{:.1f} ms", _cold),
        ("From cold: writes of the API server for each adapter", "{:.2f}", _writes),
        ("After a restart: processor time for each adapter", "{:.1f} ms", _restart),
        ("Quiet: processor time for each adapter and minute", "{:.1f} ms", _idle),
        ("Apply to Ready on the warm fleet, 99 of 100", "{:.2f} s", _ready),
        ("Most memory of the operator", "{:.0f} MiB", _memory),
    ):
        figures = [
            (f"{run['adapters']:,} on {run['engines']:,} engines", figure)
            for run in runs
            if (figure := value(run)) is not None
        ]
        if figures:
            found.append((title, form, figures))
    return found


def _phase(run: dict[str, Any], name: str) -> dict[str, Any]:
    phase: dict[str, Any] = run["phases"].get(name, {})
    return phase


def _of_start(run: dict[str, Any], phase: str) -> float | None:
    seconds = _phase(run, phase).get("operator_cpu_seconds")
    return None if seconds is None else 1000 * max(0.0, seconds - START_SECONDS) / run["adapters"]


def _unpolled(run: dict[str, Any]) -> float | None:
    return _of_start(run, "unpolled")


def _cold(run: dict[str, Any]) -> float | None:
    return _of_start(run, "cold")


def _restart(run: dict[str, Any]) -> float | None:
    return _of_start(run, "restart")


def _writes(run: dict[str, Any]) -> float | None:
    return _phase(run, "cold").get("writes_per_change")


def _idle(run: dict[str, Any]) -> float | None:
    found = _phase(run, "idle")
    cores = found.get("operator_cores")
    return None if cores is None else 60_000 * cores / run["adapters"]


def _ready(run: dict[str, Any]) -> float | None:
    return _phase(run, "warm").get("ready_seconds", {}).get("p99")


def _memory(run: dict[str, Any]) -> float | None:
    return max((p["operator_peak_rss_mib"] for p in run["phases"].values()), default=None)


def draw(runs: list[dict[str, Any]]) -> Image.Image:
    """Return the picture."""
    return bars.draw(panels(runs), lambda _: COLOUR, left=330)


def main() -> None:
    """Draw from the first argument's figures into the second's file."""
    given = [Path(each) for each in sys.argv[1:]]
    source, target = given or [_RESULTS, _PICTURE]
    draw(json.loads(source.read_text())["runs"]).save(target, optimize=True)


if __name__ == "__main__":
    main()
