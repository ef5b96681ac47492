"""All keys of a rank_pattern or alpha_pattern: the first that PEFT's rule applies to a module.

Nearly all keys are plain ("q_proj", "model.layers.3.mlp.up_proj", also with `\\.`, `^` and `$`): they
match names of one length, so that a dictionary finds them. The others are automata, tried in turn.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING

from lorafleet.pattern import Pattern
from lorafleet.pattern_syntax import MAX_LENGTH, PatternError
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet.pattern import Budget

_PLAIN = re.compile(r"(\^?)((?:[^\\.^$*+?{}\[\]()|]|\.|\\[^\w\\]|\\_)*)\$?")
_ANY_CHARACTER = re.compile(r"(?<!\\)\.")
_KEY_COST = 80
"""Steps that a plain key stands for."""


class PatternTable:
    """The keys of one mapping, in its order; `budget` and `compiled` serve several of them.

    Raises PatternError (read after the mapping's name) for a key that cannot be matched in linear
    time, and for keys that are too many for so many modules.
    """

    def __init__(self, keys: Iterable[str], budget: Budget, compiled: dict[str, Pattern]) -> None:
        self._keys = list(keys)
        self._budget = budget
        self._plain: dict[int, dict[tuple[str, tuple[int, ...]], _Outline]] = {}  # by length
        self._others: list[tuple[int, Pattern]] = []
        for position, key in enumerate(self._keys):
            try:
                self._add(position, key, compiled)
            except PatternError as bad:
                raise self._about(position, bad) from None
        self._last: tuple[str, str | None] | None = None

    def first(self, name: str) -> str | None:
        """Return the first key that applies to the module `name`."""
        if self._last is None or self._last[0] != name:  # experts ask again for one name
            position = self._first(name)
            self._last = (name, self._keys[position] if position < len(self._keys) else None)
        return self._last[1]

    def _add(self, position: int, key: str, compiled: dict[str, Pattern]) -> None:
        plain = _PLAIN.fullmatch(key) if len(key) <= MAX_LENGTH else None
        if plain is None:
            if key not in compiled:
                compiled[key] = Pattern(key, self._budget)
            self._others.append((position, compiled[key]))
            return
        self._budget.spend(_KEY_COST + len(key))
        texts = tuple(text.replace("\\", "") for text in _ANY_CHARACTER.split(plain[2]))
        lengths = tuple(map(len, texts))
        outlines = self._plain.setdefault(sum(lengths) + len(lengths) - 1, {})
        outline = outlines.get((plain[1], lengths))
        if outline is None:
            outline = outlines[plain[1], lengths] = _Outline(bool(plain[1]), lengths)
        outline.positions.setdefault(texts, position)

    def _first(self, name: str) -> int:
        position, found = 0, len(self._keys)
        try:
            self._budget.spend(len(name))
            begin = 0
            while True:  # at the name's begin and behind each of its dots
                for outline in self._plain.get(len(name) - begin, {}).values():
                    self._budget.spend(outline.cost)
                    found = min(found, outline.find(name, begin, found))
                begin = name.find(".", begin) + 1
                if not begin:
                    break
            for position, pattern in self._others:
                if position > found:
                    break
                if pattern.matches(name):
                    return position
        except PatternError as bad:
            raise self._about(position, bad) from None
        return found

    def _about(self, position: int, bad: PatternError) -> PatternError:
        return PatternError(f"key {shown(self._keys[position], 80)} {bad}")


class _Outline:
    """Plain keys that differ only in their texts: anchored or not, and the texts' lengths.

    A text is what stands between two unescaped dots, which are any characters.
    """

    def __init__(self, anchored: bool, lengths: tuple[int, ...]) -> None:
        self.positions: dict[tuple[str, ...], int] = {}  # of the first key with these texts
        self.cost = 10 + 3 * len(lengths)  # steps of one `find`
        self._anchored = anchored
        ends = list(accumulate(lengths, lambda end, length: end + 1 + length))
        self._cuts = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]

    def find(self, name: str, begin: int, otherwise: int) -> int:
        """Return the position of the key that `name` is from `begin` on."""
        if self._anchored and begin:
            return otherwise
        texts = tuple([name[begin + start : begin + end] for start, end in self._cuts])
        return self.positions.get(texts, otherwise)
