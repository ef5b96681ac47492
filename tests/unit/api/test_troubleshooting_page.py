"""Every reason has a section of its own that says what to do, and no section is of none."""

from __future__ import annotations

import re
from pathlib import Path

from lorafleet_operator.api.conditions import Reason

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"


def test_each_reason_has_its_section() -> None:
    sections = re.split(r"(?m)^### ", PAGE.read_text())[1:]
    told = [
        (name.strip(), text.split("\n## ")[0].strip())
        for name, _, text in (s.partition("\n") for s in sections)
    ]
    assert sorted(name for name, _ in told) == sorted(reason.value for reason in Reason)
    assert [name for name, text in told if len(text) < 20] == []
