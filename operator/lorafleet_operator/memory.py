"""What the operator keeps between passes: only what can be read or found out again.

Losing all of it (a restart) costs some reads and one more refusal of a bad adapter; it never
changes what a pass wants.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

    from lorafleet.errors import LorafleetError
    from lorafleet.profile import EngineProfile

    from lorafleet_operator.term import Term

TRIES: Final = 3
"""Refusals that may pass after which an update is given up, and a new adapter tried elsewhere."""
_MAX_VERDICTS: Final = 65536
"""Several for each of ten thousand adapters: one that is forgotten costs a look at its source."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a source found: a fingerprint or an error."""

    generation: int
    at: float
    """Time of the look (the loop's clock)."""
    fingerprint: str = ""
    origin: str = ""
    """Address and revision, for people."""
    revision: str = ""
    normalized: tuple[str, ...] = ()
    error: LorafleetError | None = None
    failures: int = 0
    """How many looks in a row have failed for a reason that may pass."""
    patience: float = 0.0
    """Seconds for which such a failure counts: what wakes a pass meanwhile asks the source nothing."""
    with_secret: bool = False
    """Whether it failed with a Secret, whose change ends that."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What preflight found for one content and one engine profile."""

    size_bytes: int = 0
    rank: int = 0
    normalized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: str = ""
    error: LorafleetError | None = None
    by_arena: bool = False
    """Whether only an engine's arena says so: how the content was rewritten is not known then."""


VerdictKey = tuple[str, str, bool, "EngineProfile"]
"""Adapter (its name is in the texts), fingerprint, whether a base mismatch is allowed, profile."""


_Subject = tuple[str, int, str]
"""Engine (pod UID and start of vLLM), generation of the spec, fingerprint of the content."""
_CONTENTS: Final = 4
"""Contents of an adapter that an engine's word is kept of: those that it may be asked to load by turns."""
_T = TypeVar("_T")


class _Said(Generic[_T]):
    """What engines said of contents of adapters, which are known by their UID.

    Of an engine that was started again, or is no more, and of a spec of before nothing is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, dict[_Subject, _T]]] = {}  # by adapter and pod

    def of(self, uid: str, about: _Subject) -> _T | None:
        return self._kept.get(uid, {}).get(_pod(about), {}).get(about)

    def keep(self, uid: str, about: _Subject, said: _T) -> None:
        pods = self._kept.setdefault(uid, {})
        others = (each for each in pods.get(_pod(about), {}).items() if each[0] != about)
        kept = [each for each in others if each[0][:2] == about[:2]]
        pods[_pod(about)] = dict([*kept[1 - _CONTENTS :], (about, said)])

    def pods(self, uid: str) -> Collection[str]:
        return self._kept.get(uid, {}).keys()

    def forget(self, uid: str) -> None:
        self._kept.pop(uid, None)


class Memory:
    """Caches of looks, verdicts and final refusals."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._verdicts: OrderedDict[VerdictKey, Verdict] = OrderedDict()
        self._refusals: _Said[LorafleetError] = _Said()
        self._failures: _Said[int] = _Said()
        self._read: dict[str, Term] = {}
        self._lost: dict[str, int] = {}

    def look(self, uid: str, generation: int, now: float, poll_seconds: float) -> Look | None:
        """Return the last look at the adapter's source if it still counts.

        A look counts for its generation and `poll_seconds`, 0 makes it count for ever; a failure
        that may pass for its patience.
        """
        found = self._last(uid, generation)
        if found is None:
            return None
        if found.failures:
            return found if now - found.at < found.patience else None
        if poll_seconds and now - found.at >= poll_seconds:
            return None
        return found

    def knows(self, uid: str, generation: int) -> bool:
        """Return whether the source was ever looked at under this spec."""
        return self._last(uid, generation) is not None

    def found_last(self, uid: str, generation: int) -> Look | None:
        """Return the last look under this spec, however long ago, if it found anything."""
        found = self._last(uid, generation)
        return found if found is not None and found.error is None else None

    def failures(self, uid: str, generation: int) -> int:
        """Return how many looks in a row have failed under this spec."""
        found = self._last(uid, generation)
        return found.failures if found is not None else 0

    def _last(self, uid: str, generation: int) -> Look | None:
        found = self._looks.get(uid)
        return found if found is not None and found.generation == generation else None

    def failed_with_secret(self, uid: str) -> bool:
        """Return whether the last look failed, for a reason that may pass, with a Secret."""
        found = self._looks.get(uid)
        return found is not None and found.with_secret

    def keep_look(self, uid: str, look: Look) -> None:
        """Keep what a look found."""
        self._looks[uid] = look

    def drop_look(self, uid: str) -> None:
        """Make the next pass look at the source again."""
        self._looks.pop(uid, None)

    def verdict(self, key: VerdictKey) -> Verdict | None:
        """Return what preflight found before."""
        return self._verdicts.get(key)

    def keep_verdict(self, key: VerdictKey, verdict: Verdict) -> None:
        """Keep a verdict; the oldest ones make room."""
        self._verdicts[key] = verdict
        while len(self._verdicts) > _MAX_VERDICTS:
            self._verdicts.popitem(last=False)

    def refusal(
        self, uid: str, engine: str, generation: int, fingerprint: str
    ) -> LorafleetError | None:
        """Return the engine's final refusal of this content under this spec."""
        return self._refusals.of(uid, (engine, generation, fingerprint))

    def refusing(self, uid: str) -> set[str]:
        """Return the UIDs of the pods whose engines have refused anything of the adapter."""
        return {*self._refusals.pods(uid), *self._failures.pods(uid)}

    def count_failure(self, uid: str, engine: str, generation: int, fingerprint: str) -> None:
        """Count a load of this content that the engine refused in a way that may pass."""
        tries = self.failures_of(uid, engine, generation, fingerprint)
        self._failures.keep(uid, (engine, generation, fingerprint), tries + 1)

    def failures_of(self, uid: str, engine: str, generation: int, fingerprint: str) -> int:
        """Return how often the engine has refused this content in a way that may pass."""
        return self._failures.of(uid, (engine, generation, fingerprint)) or 0

    def gave_up(self, uid: str, engine: str, generation: int, fingerprint: str) -> bool:
        """Return whether the engine has refused this content for good, or too often."""
        about = (uid, engine, generation, fingerprint)
        return self.refusal(*about) is not None or self.failures_of(*about) >= TRIES

    def keep_refusal(
        self, uid: str, engine: str, generation: int, fingerprint: str, error: LorafleetError
    ) -> None:
        """Keep a final refusal, so that the content is not sent there again."""
        self._refusals.keep(uid, (engine, generation, fingerprint), error)

    def lost(self, uid: str) -> int:
        """Return how many attempts in a row to send its content ended for the source and left nothing."""
        return self._lost.get(uid, 0)

    def keep_lost(self, uid: str, lost: int) -> None:
        """Keep how many it were."""
        if lost:
            self._lost[uid] = lost
        else:
            self._lost.pop(uid, None)

    def read_in(self, uid: str) -> Term | None:
        """Return in which term the adapter was read from the API server itself, None if in none."""
        return self._read.get(uid)

    def keep_read(self, uid: str, term: Term) -> None:
        """Note that it was read in this one."""
        self._read[uid] = term

    def forget(self, uid: str) -> None:
        """Drop all about an adapter that is gone."""
        self._read.pop(uid, None)
        self._lost.pop(uid, None)
        self._looks.pop(uid, None)
        self._refusals.forget(uid)
        self._failures.forget(uid)


def _pod(about: _Subject) -> str:
    return about[0].partition("/")[0]
