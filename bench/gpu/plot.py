"""Draws the figures of load.json: seconds of a load and of a rebuild, and what others notice.

    python bench/gpu/plot.py [bench/gpu/results/load.json] [docs/gpu-load.png]

Bars are on a logarithmic scale: the ways differ by a factor of a hundred. Needs Pillow.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "bench" / "gpu" / "results" / "load.json"
_PICTURE = _ROOT / "docs" / "gpu-load.png"
WIDTH, ROW, GAP, LEFT, RIGHT, SIZE = 1100, 34, 26, 190, 130, 18
COLOURS = {
    "stock vLLM": "#9aa0a6",
    "device": "#f2a33a",
    "direct": "#2f7ed8",
    "bus limit": "#3c9d5b",
    "quiet": "#3c9d5b",
}


def panels(figures: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Return (title, format of a value, bars) of each panel."""
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
    parts = panels(figures)
    height = sum(ROW * (len(bars) + 1) + GAP for _, _, bars in parts) + GAP
    image = Image.new("RGB", (WIDTH, height + ROW), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(SIZE)
    top = GAP
    for title, form, bars in parts:
        pen.text((20, top), title, "black", font)
        top += ROW
        least = min(value for _, value in bars) / 2
        most = max(value for _, value in bars)
        scale = (WIDTH - LEFT - RIGHT) / math.log(most / least)
        for name, value in bars:
            end = LEFT + scale * math.log(value / least)
            pen.text((40, top + 5), name, "black", font)
            pen.rectangle((LEFT, top + 4, end, top + ROW - 6), COLOURS[name])
            pen.text((end + 10, top + 5), form.format(value), "black", font)
            top += ROW
        top += GAP
    versions = figures["versions"]
    note = f"{versions.get('gpu', 'no GPU')}, vLLM {versions['vllm']}, {figures['date'][:10]}; log scale"
    pen.text((20, top), note, "#5f6368", font)
    return image


def main() -> None:
    """Draw from the first argument's figures into the second's file."""
    given = [Path(each) for each in sys.argv[1:]]
    source, target = given or [_RESULTS, _PICTURE]
    draw(json.loads(source.read_text())).save(target, optimize=True)


if __name__ == "__main__":
    main()
