"""PEFT's rank_pattern and alpha_pattern keys, matched in linear time.

PEFT takes each key as a regular expression and tries `(.*\\.)?(key)$` on the module's name.
Python's `re` backtracks, so that a hostile key could stop operator and sidecar for hours; here
a key becomes a lazily built deterministic automaton, and what an automaton cannot say
(look-around, back references, word borders) is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lorafleet.pattern_syntax import (
    BEGIN,
    END,
    Alternative,
    Anchor,
    Characters,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse,
)

MAX_POSITIONS = 4000
"""Places in one key after its counted repeats are written out (real keys have a few dozen)."""
MAX_WORK = 16_000_000
"""Steps that all keys and names of one adapter may take together: at most 40 ns each, 0.6 s.

One step is one character of a name on a way that is known; the other costs are in such steps.
"""
_STATE_COST = 100
"""Of one place of an automaton: it is memory, about 160 bytes."""
_SYNTAX_COST = 20
"""Of one character of a key."""
_LOOK_COST = 20
"""Of asking whether a character is one of a set, which may also have ranges."""

_ANY_PREFIX = Alternative(
    (
        Sequence(()),
        Sequence((Repeat(Characters(None), 0, None), Characters(frozenset(".")))),
    )
)


class Budget:
    """What matching may still cost; shared by all keys of one adapter."""

    def __init__(self, steps: int = MAX_WORK) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take `steps`. Raises PatternError when there are none left."""
        self.left -= steps
        if self.left < 0:
            raise PatternError("makes the patterns too costly to match against all modules")


@dataclass
class _Automaton:
    """Nondeterministic: per state either one character set and a target, or empty moves."""

    budget: Budget
    characters: list[Characters | None] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    empty: list[list[tuple[int, str]]] = field(default_factory=list)  # (state, anchor or "")

    def state(self) -> int:
        if len(self.target) >= MAX_POSITIONS:
            raise PatternError("is too long once its repeats are written out")
        self.budget.spend(_STATE_COST)
        self.characters.append(None)
        self.target.append(-1)
        self.empty.append([])
        return len(self.target) - 1

    def add(self, node: Node, start: int) -> int:
        """Append `node` after state `start`; return the state where it ends."""
        if isinstance(node, Characters):
            here, end = self.state(), self.state()
            self.empty[start].append((here, ""))
            self.characters[here], self.target[here] = node, end
            return end
        if isinstance(node, Anchor):
            end = self.state()
            self.empty[start].append((end, node.where))
            return end
        if isinstance(node, Sequence):
            if not node.items:  # costs a place, so that repeats of nothing are bounded too
                end = self.state()
                self.empty[start].append((end, ""))
                return end
            for item in node.items:
                start = self.add(item, start)
            return start
        end = self.state()
        if isinstance(node, Alternative):
            for option in node.options:
                self.empty[self.add(option, start)].append((end, ""))
            return end
        for _ in range(node.least):
            start = self.add(node.item, start)
        if node.most is None:
            loop = self.state()
            self.empty[start].append((loop, ""))
            self.empty[self.add(node.item, loop)].append((loop, ""))
            self.empty[loop].append((end, ""))
            return end
        for _ in range(node.most - node.least):
            self.empty[start].append((end, ""))
            start = self.add(node.item, start)
        self.empty[start].append((end, ""))
        return end


class Pattern:
    """One key, compiled. Raises PatternError for what cannot be matched in linear time."""

    def __init__(self, key: str, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._budget.spend(_SYNTAX_COST * len(key))
        self._nfa = _Automaton(self._budget)
        begin = self._nfa.state()
        self._accept = self._nfa.add(Sequence((_ANY_PREFIX, parse(key))), begin)
        self._states: dict[frozenset[int], int] = {}
        self._ways: list[list[tuple[Characters, int]]] = []  # of each state: what leads where
        self._moves: list[dict[str, int]] = []  # the known ones
        self._accepting: list[bool] = []
        first = self._state(self._closure({begin}, at_begin=True), at_begin=True)
        self._head = ("", first)
        self._last = ("", self._accepting[first])

    def matches(self, name: str) -> bool:
        """Return whether PEFT's rule applies the key to the module `name`."""
        if name == self._last[0]:  # rank and alpha often have the same key
            return self._last[1]
        head = name[: name.rfind(".") + 1]
        if head != self._head[0]:  # neighbours differ only in the last segment
            self._head = (head, self._walk(0, head))
        state = self._walk(self._head[1], name[len(head) :])
        self._last = (name, self._accepting[state])
        return self._last[1]

    def _walk(self, state: int, text: str) -> int:
        self._budget.spend(5 + len(text))
        moves = self._moves
        for character in text:
            following = moves[state].get(character)
            state = self._move(state, character) if following is None else following
        return state

    def _move(self, state: int, character: str) -> int:
        """Find the way from `state` that nobody went before."""
        ways = self._ways[state]
        self._budget.spend(sum(_LOOK_COST + 2 * len(way.ranges) for way, _ in ways))
        reached = {target for way, target in ways if way.holds(character)}
        following = self._state(self._closure(reached, at_begin=False), at_begin=False)
        self._moves[state][character] = following
        return following

    def _state(self, members: frozenset[int], *, at_begin: bool) -> int:
        """Return the number of the deterministic state with these members."""
        number = self._states.get(members)
        if number is None:
            nfa = self._nfa
            number = self._states[members] = len(self._ways)
            self._ways.append(
                [(way, nfa.target[m]) for m in members if (way := nfa.characters[m]) is not None]
            )
            self._moves.append({})
            self._accepting.append(self._accepts(members, at_begin=at_begin))
        return number

    def _closure(self, states: set[int], *, at_begin: bool, at_end: bool = False) -> frozenset[int]:
        found, todo = set(states), list(states)
        while todo:
            for state, anchor in self._nfa.empty[todo.pop()]:
                if (anchor == BEGIN and not at_begin) or (anchor == END and not at_end):
                    continue
                if state not in found:
                    found.add(state)
                    todo.append(state)
        self._budget.spend(10 * len(found))
        return frozenset(found)

    def _accepts(self, members: frozenset[int], *, at_begin: bool) -> bool:
        return self._accept in self._closure(set(members), at_begin=at_begin, at_end=True)
