"""What an HTTP answer says about the version and the part of a file that it carries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_LENGTH = re.compile(r"\d{1,18}")


@dataclass(frozen=True)
class Validator:
    """What says that a file is still the same: a strong ETag, or a date; maybe neither.

    Google's generation comes on top: it differs between uploads of the same bytes.
    """

    etag: str | None
    last_modified: str | None
    generation: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Validator:
        """Return the strongest validator among the headers of an answer."""
        etag = headers.get("ETag", "")
        generation = headers.get("x-goog-generation")
        if etag and not etag.startswith("W/"):
            return cls(etag, None, generation)
        return cls(None, headers.get("Last-Modified"), generation)

    @property
    def version(self) -> str:
        """The version alone, for people; "" if there is none."""
        return self.generation or self.etag or self.last_modified or ""

    def __bool__(self) -> bool:
        return bool(self.version)

    def __str__(self) -> str:
        if self.generation:
            return f"generation {self.generation}"
        if self.etag:
            return f"etag {self.etag}"
        return f"modified {self.last_modified}" if self.last_modified else "no version"

    def conditions(self) -> dict[str, str]:
        """Return the request headers that make an honest server refuse another version.

        Not for a date: it has whole seconds, and servers that compare it with a time in
        fractions refuse every request. Answers are compared with the validator anyway.
        """
        return {"If-Match": self.etag} if self.etag else {}


@dataclass(frozen=True)
class Part:
    """Which bytes an answer carries: from `start` to before `end`, of `size` in all.

    `end` and `size` are None where the server does not tell them.
    """

    start: int
    end: int | None
    size: int | None

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str]) -> Part | None:
        """Return the part of a 200, 206 or 416 answer; None if the headers make no sense."""
        if status == 200:
            length = headers.get("Content-Length")
            if length is None:
                return cls(0, None, None)
            return cls(0, int(length), int(length)) if _LENGTH.fullmatch(length) else None
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None:
            return None
        first, last, size = found.groups()
        if first is None:
            return cls(0, 0, int(size))
        if not int(first) <= int(last) < int(size):
            return None
        return cls(int(first), int(last) + 1, int(size))
