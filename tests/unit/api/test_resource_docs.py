"""docs/resources.md says what the models say."""

from __future__ import annotations

from lorafleet_operator.api.conditions import Reason
from resourcedocs import PAGE, filled, tables


def test_the_page_is_current_and_has_every_table() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "run hack/resourcedocs.py"
    assert [name for name in tables() if f"<!-- table:{name} -->" not in page] == []


def test_every_reason_has_its_row_with_a_text() -> None:
    rows = tables()["reasons"].splitlines()[2:]
    assert len(rows) == len(Reason)
    assert all(row.split("|")[3].strip() for row in rows)
