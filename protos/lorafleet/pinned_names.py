"""Names of one revision, whatever its served name means by now: `<served name>@<digest>`. Pure.

The digest is that of the staged content, as `status.digest` tells it: 12 of its hex digits or more,
with or without `sha256:` before them. No served name ends so: none can be taken for another's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_DIGITS: Final = 12
PATTERN: Final = ".@(sha256:)?[0-9a-f]{12,64}$"
"""How a pinned name ends, for the API server's RE2; no served name may."""
_NAME: Final = re.compile(r"(.+)@(?:sha256:)?([0-9a-f]{12,64})", re.DOTALL)
_MOST_SHOWN: Final = 8


class HasDigest(Protocol):
    """What has to be known of a revision."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex digits>`."""


_Revision = TypeVar("_Revision", bound=HasDigest)


@dataclass(frozen=True)
class PinnedName:
    """A served name and the beginning of a digest, 12 to 64 hex digits."""

    served_name: str
    digits: str


def parse(name: str) -> PinnedName | None:
    """Return what a pinned name asks for, None for any other name."""
    found = _NAME.fullmatch(name)
    return PinnedName(found[1], found[2]) if found else None


def find(pinned: PinnedName, revisions: Sequence[_Revision]) -> _Revision | None:
    """Return which of a served name's revisions is meant, None if none is or more than one.

    Of one content that was loaded twice it is the later one.
    """
    meant = [each for each in revisions if _hex(each.digest).startswith(pinned.digits)]
    return meant[-1] if len({each.digest for each in meant}) == 1 else None


def absence(name: str, pinned: PinnedName, revisions: Iterable[HasDigest]) -> str:
    """Return in one line why `name` means none of the revisions that this engine has of it."""
    line = f"The model `{name}` does not exist"
    here = list(dict.fromkeys(each.digest for each in revisions))
    alike = sum(_hex(digest).startswith(pinned.digits) for digest in here)
    if alike > 1:
        return f"{line}: {alike} revisions here begin with these digits, give more of them."
    if not here:
        return f"{line}: this engine has no revision of {pinned.served_name}."
    shown = ", ".join(_hex(digest)[:LEAST_DIGITS] for digest in here[-_MOST_SHOWN:])
    return f"{line}: of {pinned.served_name} this engine has {shown}."


def short(served_name: str, digest: str) -> str:
    """Return the name of a revision as people are shown it."""
    return f"{served_name}@{_hex(digest)[:LEAST_DIGITS]}"


def whole(served_name: str, digest: str) -> str:
    """Return the name of a revision with all that its digest has."""
    return f"{served_name}@{_hex(digest)}"


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
