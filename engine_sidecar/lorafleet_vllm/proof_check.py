"""The verdict over all workers' evidence: it must be what the sidecar computed from the image."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lorafleet.fingerprint import MODULUS
from lorafleet.profile import ModuleKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_Span = tuple[int, int]
_Region = tuple[_Span, ...]


@dataclass(frozen=True)
class _Tensor:
    """One staged tensor: its shape as [experts, rows, cols] and its fingerprint."""

    shape: tuple[int, ...]
    fingerprint: int


_NOTHING = _Tensor((0, 0, 0), 0)


class Verdict:
    """Compares evidence with `revision.json`, a few layers of all workers at a time.

    `line` is empty as long as everything agrees, else it names the first module that does not.
    """

    def __init__(self, revision_file: Path) -> None:
        raw = json.loads(revision_file.read_bytes())
        self.line = ""
        self._expected: dict[tuple[str, str], _Tensor] = {}
        for name, entry in raw["modules"].items():
            for side in ("a", "b"):
                shape = tuple(map(int, entry[side]["shape"]))
                if ModuleKind(entry["kind"]) is not ModuleKind.EXPERTS:
                    shape = (1, *shape)
                if "proof" not in entry:
                    self.line = f"{name}: revision.json says no fingerprints; stage it again"
                    return
                self._expected[name, side] = _Tensor(shape, int(entry["proof"][side], 16))
        self._unseen = {name for name, _ in self._expected}

    @property
    def modules(self) -> int:
        """How many modules the revision has."""
        return len(self._expected) // 2

    def add(self, evidence: Sequence[dict[str, Any]]) -> None:
        """Take what every worker says of the same layers."""
        names = dict.fromkeys(name for each in evidence for name in each["parts"])
        for name in names:
            self._unseen.discard(name)
            for side in ("a", "b"):
                self._compare(name, side, evidence)
            for rank, each in enumerate(evidence):
                adapted = (name, "a") in self._expected
                if each["enabled"].get(name) is False and adapted:
                    self._say(f"{name}: the experts' adapter is switched off (rank {rank})")

    def finish(self) -> None:
        """Say so if no worker has shown a module at all."""
        if self._unseen:
            self._say(f"{min(self._unseen)}: no worker shows it in its slots")

    def _compare(self, name: str, side: str, evidence: Sequence[dict[str, Any]]) -> None:
        wanted = self._expected.get((name, side), _NOTHING)
        parts: dict[_Region, int] = {}
        what = f"{name}: lora_{side.upper()} in the engine's slot"
        for rank, each in enumerate(evidence):
            for part_side, *spans, text in each["parts"].get(name, ()):
                if part_side != side:
                    continue
                region = _clipped(spans, wanted.shape)
                number = int(text, 16)
                if not math.prod(stop - start for start, stop in region):
                    if number:  # padding, or a module that the adapter does not touch
                        self._say(f"{what} holds values where there must be none (rank {rank})")
                elif parts.setdefault(region, number) != number:
                    self._say(f"{what} differs between the ranks that share it (rank {rank})")
        covered = sum(math.prod(stop - start for start, stop in region) for region in parts)
        if covered != math.prod(wanted.shape):
            self._say(f"{what}: the ranks show {covered} of {math.prod(wanted.shape)} values")
        found = sum(parts.values()) % MODULUS
        if found != wanted.fingerprint:
            self._say(f"{what} is not what was staged{self._meaning(side, found)}")

    def _meaning(self, side: str, found: int) -> str:
        """Return what the slot holds instead, if that can be told."""
        if found == 0:
            return ": it is empty"
        for (name, of_side), tensor in self._expected.items():
            if of_side == side and tensor.fingerprint == found:
                return f": it is that of {name}"
        return ""

    def _say(self, line: str) -> None:
        self.line = self.line or line


def _clipped(spans: Sequence[Sequence[int]], shape: tuple[int, ...]) -> _Region:
    """Return the region of a part within the tensor; the slot is padded to the engine's rank."""
    return tuple((min(a, n), min(b, n)) for (a, b), n in zip(spans, shape, strict=True))
