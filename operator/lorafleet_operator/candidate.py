"""What one operator knows of the leases, and what it holds. No requests and no clock of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet_operator.lease import (
    ACT_PART,
    Do,
    Me,
    Record,
    Seen,
    Step,
    decide,
    divided_otherwise,
)
from lorafleet_operator.term import Term

if TYPE_CHECKING:
    from collections.abc import Iterable


class Candidate:
    """One operator in the competition. All times are of one clock of its machine.

    A lease counts from the request that took or renewed it, not from the answer: others count
    from when they have seen that, which is later.
    """

    def __init__(self, me: Me) -> None:
        self.me = me
        self.terms: dict[int, Term] = {}
        """What it holds, by shard. A term may have run out meanwhile: its `until` decides."""
        self._taken: dict[int, float] = {}  # shard -> when the request to take it was sent
        self._renewed: dict[int, float] = {}  # shard -> when that to take or renew it was sent
        self._seen: dict[int, Seen] = {}

    def look(self, records: Iterable[Record], now: float) -> None:
        """Take what a list says that began after every earlier step had ended."""
        found = {shard: Record(shard) for shard in range(self.me.shards)}
        found.update((record.shard, record) for record in records)
        before, self._seen = self._seen, {}
        for shard, record in found.items():
            known = before.get(shard)
            same = known is not None and known.record.sign_of_life == record.sign_of_life
            self._seen[shard] = Seen(record, known.since if known is not None and same else now)
        for shard in [*self.terms, *self._taken]:
            if found[shard].holder != self.me.identity:
                self._lose(shard)
        for shard, sent in list(self._taken.items()):
            if now >= self._until(sent):
                del self._taken[shard]
        if not divided_otherwise(self.me, self._seen, now):
            for shard, sent in self._taken.items():
                self._renewed[shard] = sent
                self.terms[shard] = Term(self._until(sent))
            self._taken.clear()

    def run_out(self, now: float) -> None:
        """Drop the terms that are over."""
        for shard in [shard for shard, term in self.terms.items() if term.until <= now]:
            self._lose(shard)

    def steps(self, now: float) -> list[Step]:
        """Return what to write now. What is to be given up is not held any more from here on."""
        self.run_out(now)
        steps = decide(self.me, self._seen, self._renewed, self._taken, now)
        for step in steps:
            if step.do is Do.GIVE_UP:
                self._lose(step.record.shard)
        return steps

    def give_up(self) -> list[Step]:
        """Hold nothing from here on; return what to write so that others need not wait."""
        shards = [*self.terms, *self._taken]
        for shard in shards:
            self._lose(shard)
        records = [self._seen[shard].record for shard in shards]
        return [Step(Do.GIVE_UP, replace(record, asked_by="")) for record in records]

    def written(self, step: Step, after: Record, sent: float, now: float) -> None:
        """Take the answer to a step whose request was sent at `sent`."""
        self.run_out(now)
        shard = step.record.shard
        self._seen[shard] = replace(self._seen[shard], record=after)
        if step.do is Do.RENEW and shard in self.terms:
            self._renewed[shard] = sent
            self.terms[shard].until = self._until(sent)
        elif step.do in (Do.TAKE, Do.RENEW):
            # Renewed too late to go on: others may have acted meanwhile.
            self._taken[shard] = sent

    def _until(self, sent: float) -> float:
        return sent + self.me.seconds * ACT_PART

    def _lose(self, shard: int) -> None:
        self._taken.pop(shard, None)
        self._renewed.pop(shard, None)
        term = self.terms.pop(shard, None)
        if term is not None:
            term.end()


def changed(step: Step, me: Me, stamp: str) -> Record:
    """Return the record that a step writes; `stamp` is the time for people."""
    record = step.record
    if step.do is Do.ASK:
        return replace(record, asked_by=me.identity)
    if step.do is Do.GIVE_UP:
        return replace(record, holder="", renewed=stamp)
    mine = replace(
        record,
        holder=me.identity,
        seconds=me.seconds,
        renewed=stamp,
        shards=me.shards,
        asked_by="",
    )
    if step.do is Do.RENEW:
        return mine
    return replace(mine, acquired=stamp, transitions=record.transitions + 1)
