"""Pictures of figures as horizontal bars, panel under panel. Needs Pillow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, ROW, GAP, RIGHT, SIZE = 1100, 34, 26, 130, 18

Panel = tuple[str, str, list[tuple[str, float]]]
"""Title, format of a value, (name, value) of each bar."""


def draw(
    panels: Sequence[Panel],
    colour: Callable[[str], str],
    *,
    left: int,
    logarithmic: bool = False,
    note: str = "",
) -> Image.Image:
    """Return the picture. `colour`: of a bar, by its name; `left`: where bars begin, in pixels.

    Bars begin at zero, on a logarithmic scale at half of the panel's least value.
    """
    height = sum(ROW * (len(bars) + 1) + GAP for _, _, bars in panels) + GAP
    image = Image.new("RGB", (WIDTH, height + ROW * bool(note)), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(SIZE)
    top = GAP
    for title, form, bars in panels:
        pen.text((20, top), title, "black", font)
        top += ROW
        values = [value for _, value in bars]
        least = min(values) / 2
        lengths = [math.log(value / least) for value in values] if logarithmic else values
        longest = math.log(max(values) / least) if logarithmic else max(values) or 1.0
        for (name, value), length in zip(bars, lengths, strict=True):
            end = left + (WIDTH - left - RIGHT) * length / longest
            pen.text((40, top + 5), name, "black", font)
            pen.rectangle((left, top + 4, end, top + ROW - 6), colour(name))
            pen.text((end + 10, top + 5), form.format(value), "black", font)
            top += ROW
        top += GAP
    if note:
        pen.text((20, top), note, "#5f6368", font)
    return image
