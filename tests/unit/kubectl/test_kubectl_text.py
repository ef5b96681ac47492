"""What reaches a terminal can be printed, fits, and says the same without colours."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.kubectl.text import Table, age, cut, printable, size, width

ROWS = st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=5)
COLOUR = re.compile(r"\x1b\[\d+m")


@given(st.text())
def test_no_text_holds_anything_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(char)[0] for char in shown} & {"C"}
    assert "\n" not in shown
    assert printable(shown) == shown, "what was made printable stays as it is"


@pytest.mark.parametrize(
    ("text", "shown"),
    {
        "\x1b[31mred\x1b]0;title\x07": r"\x1b[31mred\x1b]0;title\x07",
        "two\nlines\tand  spaces ": "two lines and spaces",
        "\u202eright to left": r"\u202eright to left",
        "zero\u200bwidth": r"zero\u200bwidth",
        "c1 \x9b31m": r"c1 \x9b31m",
        "日本語": "日本語",
        "\x7f": r"\x7f",
    }.items(),
)
def test_what_cannot_be_printed_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_what_is_cut_fits(text: str, columns: int) -> None:
    shown = cut(printable(text), columns)
    assert width(shown) <= columns


@given(ROWS, st.integers(min_value=1, max_value=60))
def test_a_table_is_never_wider_than_its_terminal(
    rows: list[tuple[str, ...]], columns: int
) -> None:
    for line in Table(("A", "B", "C"), columns=columns).lines(rows):
        assert width(line) <= columns


@given(ROWS)
def test_colours_change_nothing_else(rows: list[tuple[str, ...]]) -> None:
    rows += [("True", "False", "Ready")]
    plain = Table(("A", "B", "C")).lines(rows)
    coloured = Table(("A", "B", "C"), colour=True).lines(rows)
    assert coloured != plain
    assert [COLOUR.sub("", line).rstrip() for line in coloured] == plain


def test_columns_only_grow_and_the_head_comes_once() -> None:
    table = Table(("NAME", "TEXT"))
    assert table.lines([("a", "x")]) == ["NAME  TEXT", "a     x"]
    assert table.lines([("longer", "")]) == ["longer  -"]
    assert table.lines([("b", " ")]) == ["b"]


def test_wide_characters_take_two_columns() -> None:
    assert Table(("A", "B")).lines([("日本", "x"), ("abcd", "x")])[1:] == ["日本  x", "abcd  x"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (10_799, "179m"), (10_800, "3h"),
     (172_799, "47h"), (172_800, "2d"), (10**8, "1157d")],
)  # fmt: skip
def test_an_age_is_shown_as_kubectl_does(seconds: int, shown: str) -> None:
    now = datetime.now(UTC)
    assert age((now - timedelta(seconds=seconds)).isoformat(), now) == shown


@pytest.mark.parametrize("since", ["", "yesterday", "2026-01-01", "2026-01-01T00:00:00"])
def test_what_is_no_time_has_no_age(since: str) -> None:
    assert age(since) == ""


def test_sizes_are_for_people() -> None:
    shown = [size(count) for count in (None, 0, 1023, 1536, 2 << 20, 3 << 30)]
    assert shown == ["", "0B", "1023B", "1.5Ki", "2.0Mi", "3.0Gi"]
