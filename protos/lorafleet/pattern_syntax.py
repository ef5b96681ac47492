"""The part of Python's regular expressions that module-name patterns use, as a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

BEGIN = "^"
END = "$"
MAX_LENGTH = 512
MAX_DEPTH = 20
MAX_REPEAT = 1000


class PatternError(ValueError):
    """What a key holds that is not supported; reads after the key's name."""


@dataclass(frozen=True)
class Characters:
    """One character: of `members`, any if None (but a line break), or none of them if negated.

    `classes` holds "d", "w", "s" and their negations "D", "W", "S".
    """

    members: frozenset[str] | None
    ranges: tuple[tuple[str, str], ...] = ()
    classes: str = ""
    negated: bool = False

    def holds(self, character: str) -> bool:
        """Return whether the character is one of these."""
        if self.members is None:
            return character != "\n"
        inside = (
            character in self.members
            or any(low <= character <= high for low, high in self.ranges)
            or any(_in_class(character, name) for name in self.classes)
        )
        return inside != self.negated


@dataclass(frozen=True)
class Anchor:
    """The begin or the end of the name."""

    where: str


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alternative:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`item` at least `least` and at most `most` times (None: no limit)."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = "Characters | Anchor | Sequence | Alternative | Repeat"


def parse(key: str) -> Node:
    """Return the tree of `key`. Raises PatternError for what is malformed or not supported."""
    if len(key) > MAX_LENGTH:
        raise PatternError(f"is longer than {MAX_LENGTH} characters")
    reader = _Reader(key)
    node = reader.alternative(0)
    if reader.position != len(key):
        raise PatternError("has an unbalanced )")
    return node


def _in_class(character: str, name: str) -> bool:
    lower = name.lower()
    if lower == "d":
        inside = character.isdecimal()
    elif lower == "w":
        inside = character.isalnum() or character == "_"
    else:
        inside = character.isspace()
    return inside == name.islower()


class _Reader:
    """A recursive descent over one key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.position = 0

    def _next(self) -> str:
        return self.key[self.position] if self.position < len(self.key) else ""

    def _take(self) -> str:
        character = self._next()
        if not character:
            raise PatternError("ends too early")
        self.position += 1
        return character

    def _try(self, text: str) -> bool:
        found = self.key.startswith(text, self.position)
        self.position += len(text) * found
        return found

    def alternative(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise PatternError("is nested too deeply")
        options = [self._sequence(depth)]
        while self._try("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alternative(tuple(options))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self._next() not in ("", "|", ")"):
            items.append(self._repeated(self._atom(depth)))
        return Sequence(tuple(items))

    def _atom(self, depth: int) -> Node:
        character = self._take()
        if character == "(":
            if self._try("?") and not self._try(":"):
                raise PatternError("has a (?..) group that is not supported")
            node = self.alternative(depth + 1)
            if not self._try(")"):
                raise PatternError("has an unbalanced (")
            return node
        if character == "[":
            return self._set()
        if character == ".":
            return Characters(None)
        if character in (BEGIN, END):
            return Anchor(character)
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise PatternError(f"has nothing to repeat before {character}")
        return Characters(frozenset(character))

    def _escape(self) -> Characters:
        character = self._take()
        if character in "dwsDWS":
            return Characters(frozenset(), classes=character)
        if character.isalnum():
            raise PatternError(f"has \\{character}, which is not supported")
        return Characters(frozenset(character))

    def _set(self) -> Characters:
        negated = self._try("^")
        members: set[str] = set()
        ranges: list[tuple[str, str]] = []
        classes = ""
        first = True
        while first or self._next() != "]":
            first = False
            character = self._take()
            if character == "\\":
                escaped = self._escape()
                classes += escaped.classes
                if escaped.classes:
                    continue
                character = min(escaped.members or "\\")
            following = self.key[self.position + 1 : self.position + 2]
            if self._next() == "-" and following not in ("", "]"):
                self.position += 1
                high = self._take()
                if high == "\\":
                    high = min(self._escape().members or {""})
                if not high or high < character:
                    raise PatternError("has a bad character range")
                ranges.append((character, high))
            else:
                members.add(character)
        self.position += 1
        return Characters(frozenset(members), tuple(ranges), classes, negated)

    def _repeated(self, item: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return item
        if isinstance(item, Anchor):
            raise PatternError("repeats an anchor")
        self._try("?")  # lazy: the same set of names
        if self._next() in ("*", "+", "?", "{"):
            raise PatternError("has a multiple or possessive repeat")
        return Repeat(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._try("*"):
            return 0, None
        if self._try("+"):
            return 1, None
        if self._try("?"):
            return 0, 1
        if self._next() != "{":
            return None
        close = self.key.find("}", self.position)
        least, comma, most = self.key[self.position + 1 : close].partition(",")
        numbers = [text for text in (least, most) if text]
        if close < 0 or not numbers or not all(n.isascii() and n.isdigit() for n in numbers):
            raise PatternError("has a { that is not a repeat")
        self.position = close + 1
        low = int(least or 0)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            raise PatternError("has bad repeat bounds")
        return low, high
