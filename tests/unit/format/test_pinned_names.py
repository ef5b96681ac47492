"""Names of one revision: what they ask for, which revision that is, and what is said of others."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet.pinned_names import PATTERN, PinnedName, absence, find, parse, short, whole

ONE, TWO = "sha256:" + "1a" * 32, "sha256:" + "2b" * 32
ALIKE = "sha256:" + "1a" * 31 + "1b"


@dataclass(frozen=True)
class Held:
    digest: str
    loader: str = "direct"


NAMES: dict[str, tuple[str, PinnedName | None]] = {
    "a served name pins nothing": ("team-a/sql", None),
    "twelve digits are enough": ("team-a/sql@1a1a1a1a1a1a", PinnedName("team-a/sql", "1a" * 6)),
    "all of them are right": (f"team-a/sql@{'1a' * 32}", PinnedName("team-a/sql", "1a" * 32)),
    "as status.digest has them": (f"team-a/sql@{ONE}", PinnedName("team-a/sql", "1a" * 32)),
    "eleven are too few": ("team-a/sql@1a1a1a1a1a1", None),
    "more than a digest has": (f"team-a/sql@{'1a' * 32}1", None),
    "digits are small": ("team-a/sql@1A1A1A1A1A1A", None),
    "a tag is no digest": ("team-a/sql@latest", None),
    "nor is a line end one": ("team-a/sql@1a1a1a1a1a1a\n", None),
    "nothing is none": ("team-a/sql@", None),
    "a served name is before it": ("@1a1a1a1a1a1a", None),
    "the last @ counts": ("a@v2@1a1a1a1a1a1a", PinnedName("a@v2", "1a" * 6)),
}


@pytest.mark.parametrize("sentence", NAMES)
def test_what_a_name_asks_for(sentence: str) -> None:
    name, expected = NAMES[sentence]
    assert parse(name) == expected


FOUND: dict[str, tuple[str, list[Held], Held | None]] = {
    "the one that begins so": ("1a" * 6, [Held(ONE), Held(TWO)], Held(ONE)),
    "no other than that": ("1c" * 6, [Held(ONE), Held(TWO)], None),
    "nothing where nothing is": ("1a" * 6, [], None),
    "none of two that begin so": ("1a" * 6, [Held(ONE), Held(ALIKE)], None),
    "the one that all digits name": ("1a" * 32, [Held(ONE), Held(ALIKE)], Held(ONE)),
    "the later load of one content": (
        "1a" * 6,
        [Held(ONE), Held(ONE, "device")],
        Held(ONE, "device"),
    ),
}


@pytest.mark.parametrize("sentence", FOUND)
def test_which_revision_is_meant(sentence: str) -> None:
    digits, held, expected = FOUND[sentence]
    assert find(PinnedName("t/a", digits), held) == expected


@given(st.lists(st.sampled_from([ONE, TWO, ALIKE])), st.sampled_from([ONE, TWO, ALIKE]), st.data())
def test_a_pinned_name_never_means_a_revision_of_another_digest(
    held: list[str], digest: str, data: st.DataObject
) -> None:
    digits = digest[7 : 7 + data.draw(st.integers(12, 64))]
    pinned = parse(f"t/a@{digits}")
    assert pinned is not None
    found = find(pinned, [Held(each) for each in held])
    beginning = {each for each in held if each[7:].startswith(digits)}
    assert (found and found.digest) == (beginning.pop() if len(beginning) == 1 else None)


ABSENT: dict[str, tuple[str, list[Held], str]] = {
    "it says which are here": (
        "1c1c1c1c1c1c",
        [Held(ONE), Held(TWO), Held(ONE, "device")],
        "of t/a this engine has 1a1a1a1a1a1a, 2b2b2b2b2b2b.",
    ),
    "or that none is": ("1a1a1a1a1a1a", [], "this engine has no revision of t/a."),
    "or that more digits are needed": (
        "1a1a1a1a1a1a",
        [Held(ONE), Held(ALIKE)],
        "2 revisions here begin with these digits, give more of them.",
    ),
}


@pytest.mark.parametrize("sentence", ABSENT)
def test_what_is_said_of_a_revision_that_is_not_here(sentence: str) -> None:
    digits, held, reason = ABSENT[sentence]
    pinned = parse(f"t/a@{digits}")
    assert pinned is not None
    line = absence(f"t/a@{digits}", pinned, held)
    assert line == f"The model `t/a@{digits}` does not exist: {reason}"


def test_the_line_is_bounded_however_many_revisions_are_here() -> None:
    held = [Held(f"sha256:{number:064x}") for number in range(10_000)]
    assert len(absence("t/a@1c1c1c1c1c1c", PinnedName("t/a", "1c" * 6), held)) < 300


def test_people_are_shown_twelve_digits() -> None:
    assert short("t/a", ONE) == "t/a@1a1a1a1a1a1a"
    assert parse(short("t/a", ONE)) == PinnedName("t/a", "1a" * 6)
    assert whole("t/a", ONE) == f"t/a@{'1a' * 32}"


@given(st.from_regex(r".{0,3}@{0,2}(sha256:)?[0-9a-f]{10,66}.?", fullmatch=True))
def test_the_api_server_refuses_what_would_be_a_pinned_name(name: str) -> None:
    ends_so = re.search(PATTERN.replace("$", r"\Z"), name) is not None
    assert ends_so == (parse(name) is not None)
