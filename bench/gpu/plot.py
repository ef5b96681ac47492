"""Draws the figures of load.json: seconds of a load and of a rebuild, and what others notice.

    python bench/gpu/plot.py [bench/gpu/results/load.json] [docs/gpu-load.png]

Bars are on a logarithmic scale: the ways differ by a factor of a hundred. Needs Pillow.
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

_RESULTS = _ROOT / "bench" / "gpu" / "results" / "load.json"
_PICTURE = _ROOT / "docs" / "gpu-load.png"
COLOURS = {
    "stock vLLM": "#9aa0a6",
    "device": "#f2a33a",
    "direct": "#2f7ed8",
    "bus limit": "#3c9d5b",
    "quiet": "#3c9d5b",
}


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Return what each panel shows."""
    load = [
        ("stock vLLM", figures["stock_s"]),
        ("device", figures["device_s"]),
        ("direct", figures["direct_s"]),
        ("bus limit", figures["copy_s"]),
    ]
    again = [
        ("device", figures["device_rebuild_s"]),
        ("direct", figures["direct_rebuild_s"]),
        ("bus limit", figures["copy_s"]),
    ]
    steps = [
        ("stock vLLM", figures["longest_step_ms_stock"]),
        ("device", figures["longest_step_ms_device"]),
        ("direct", figures["longest_step_ms_direct"]),
        ("quiet", figures["longest_step_ms_quiet"]),
    ]
    size = figures["adapter_bytes"] / 2**30
    return [
        (f"Load of {size:.2f} GiB until it is complete in its slot", "{:.3f} s", load),
        ("The same after an eviction", "{:.3f} s", again),
        ("Longest step of 8 requests that decode meanwhile", "{:.1f} ms", steps),
    ]


def draw(figures: dict[str, Any]) -> Image.Image:
    """Return the picture."""
    versions = figures["versions"]
    note = f"{versions.get('gpu', 'no GPU')}, vLLM {versions['vllm']}, {figures['date'][:10]}; log scale"
    return bars.draw(panels(figures), COLOURS.__getitem__, left=190, logarithmic=True, note=note)


def main() -> None:
    """Draw from the first argument's figures into the second's file."""
    given = [Path(each) for each in sys.argv[1:]]
    source, target = given or [_RESULTS, _PICTURE]
    draw(json.loads(source.read_text())).save(target, optimize=True)


if __name__ == "__main__":
    main()
