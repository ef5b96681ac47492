"""The tables of the pages that are written from code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_CODE_OR_TAG = re.compile(r"`[^`\n]*`|<")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. A `<` outside of code would begin a tag; inside it is what it is."""
    lines = [head, ["---"] * len(head), *rows]
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return _CODE_OR_TAG.sub(lambda found: "&lt;" if found[0] == "<" else found[0], text)
