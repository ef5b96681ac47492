"""Reads the steps out of the page: pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kubelets.layout import REPOSITORY

PAGE = REPOSITORY / "docs" / "walkthrough.md"
_FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True)
class Step:
    """One section: its heading, and what its `sh` blocks say."""

    title: str
    commands: str


def steps(text: str) -> list[Step]:
    """The sections of the page in order, those without commands left out."""
    found = []
    for section in re.split(r"(?m)^## ", text)[1:]:
        title, _, body = section.partition("\n")
        if commands := "\n".join(_blocks(body)):
            found.append(Step(title.strip(), commands))
    return found


def _blocks(body: str) -> list[str]:
    """The contents of the fenced blocks whose language is sh."""
    blocks: list[str] = []
    language: str | None = None
    for line in body.splitlines():
        if fence := _FENCE.match(line):
            if language is None:
                language = fence[1]
                if language == "sh":
                    blocks.append("")
            else:
                language = None
        elif language == "sh":
            blocks[-1] += line + "\n"
    return blocks
