"""What to do with the leases: tables, and any interleaving of operators against one API server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet_operator.candidate import Candidate, changed
from lorafleet_operator.lease import Do, Me, Record, Seen, Step, decide, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 15.0
NOW = 100.0
ME = "me"


def lease(shard: int, holder: str = "", age: float = 0.0, **more: object) -> Seen:
    """A lease that was last seen to change `age` seconds ago."""
    known = {"seconds": SECONDS, "renewed": "r", "version": "7", **more}
    return Seen(Record(shard, holder=holder, **known), NOW - age)  # type: ignore[arg-type]


def decided(
    *seen: Seen, held: dict[int, float] | None = None, taken: tuple[int, ...] = (), shards: int = 0
) -> list[tuple[str, int]]:
    """Return the steps of an operator that has seen these, as (what, shard)."""
    me = Me(ME, shards or 4, SECONDS)
    alike = [
        each if each.record.shards else replace(each, record=replace(each.record, shards=me.shards))
        for each in seen
    ]
    by_shard = {each.record.shard: each for each in alike}
    steps = decide(me, by_shard, held or {}, taken, NOW)
    return [(str(step.do), step.record.shard) for step in steps]


def held(*shards: int, ago: float = 1.0) -> dict[int, float]:
    return dict.fromkeys(shards, NOW - ago)


OURS = [lease(0, ME), lease(1, ME)]


@pytest.mark.parametrize(
    ("seen", "given", "steps"),
    [
        # Free ones.
        ([lease(n) for n in range(4)], {}, [("take", n) for n in range(4)]),
        ([lease(0, "a", 15.0), lease(1, "a", 14.9)], {"shards": 2}, [("take", 0)]),
        # Who was the holder under the same name takes at once; nobody else is.
        ([lease(0, ME, 1.0)], {"shards": 1}, [("take", 0)]),
        # Renewals come after a third of the time.
        (OURS, {"shards": 2, "held": held(0, 1, ago=4.9)}, []),
        (OURS, {"shards": 2, "held": held(0, 1, ago=5.0)}, [("renew", 0), ("renew", 1)]),
        # One lease and two operators: the second one waits and asks for nothing.
        ([lease(0, "a")], {"shards": 1}, []),
        # A free one is left to who holds fewer, for a while.
        (
            [lease(0), lease(1, "b"), lease(2, ME), lease(3, ME)],
            {"held": held(2, 3)},
            [],
        ),
        (
            [lease(0, age=3.0), lease(1, "b"), lease(2, ME), lease(3, ME)],
            {"held": held(2, 3)},
            [("take", 0)],
        ),
        ([lease(0), lease(1, "b"), lease(2, ME)], {"shards": 3, "held": held(2)}, [("take", 0)]),
        # Who holds too few asks who holds the most, for one, and waits for it.
        ([lease(n, "a") for n in range(4)], {}, [("ask", 2)]),
        ([lease(n, "a", asked_by=ME if n == 3 else "") for n in range(4)], {}, []),
        ([lease(0, "a"), lease(1, "a"), lease(2, "b"), lease(3, ME)], {"held": held(3)}, []),
        # Who is asked gives up one at a time, as long as that makes it more equal.
        (
            [lease(n, ME, asked_by="b") for n in range(4)],
            {"held": held(0, 1, 2, 3)},
            [("give up", 0)],
        ),
        (
            [lease(0, "b"), lease(1, ME, asked_by="b"), lease(2, ME), lease(3, "b")],
            {"held": held(1, 2)},
            [],
        ),
        # What was given up is left to who asked for it; then anybody takes it.
        ([lease(0, asked_by="b"), lease(1, ME)], {"shards": 2, "held": held(1)}, []),
        ([lease(0, asked_by="b", age=5.0)], {"shards": 1}, [("take", 0)]),
        ([lease(0, asked_by=ME)], {"shards": 1}, [("take", 0)]),
        # Another number of shards: nothing is taken or asked for; what is held stays.
        ([lease(0), lease(1, "old", shards=1)], {"shards": 2}, []),
        ([lease(0), lease(7, "old", shards=8)], {"shards": 1}, []),
        ([lease(0), lease(7, "old", 15.0, shards=8)], {"shards": 1}, [("take", 0)]),
        (
            [lease(0, ME, shards=2), lease(1, "old", shards=1)],
            {"shards": 2, "taken": (0,)},
            [("give up", 0)],
        ),
        (
            [lease(0, ME, shards=2), lease(1, "old", shards=1)],
            {"shards": 2, "held": held(0, ago=5.0)},
            [("renew", 0)],
        ),
    ],
)
def test_what_is_done_with_leases(
    seen: list[Seen], given: dict[str, object], steps: list[tuple[str, int]]
) -> None:
    assert decided(*seen, **given) == steps  # type: ignore[arg-type]


def test_a_pool_has_the_same_shard_in_every_process() -> None:
    assert [shard_of(f"team-{n}/pool", 4) for n in range(8)] == [2, 3, 1, 0, 0, 1, 3, 2]
    assert {shard_of(f"team-{n}/pool", 1) for n in range(100)} == {0}


def test_shards_get_about_as_many_pools() -> None:
    shards = Counter(shard_of(f"team-{n}/pool-{n % 7}", 4) for n in range(400))
    assert all(80 < count < 120 for count in shards.values()), shards


def test_a_question_is_no_sign_of_life() -> None:
    mine = Candidate(Me(ME, 1, SECONDS))
    dead = Record(0, "1", "dead", SECONDS, renewed="r", shards=1)
    mine.look([dead], 0.0)
    mine.look([replace(dead, version="2", asked_by="third")], 14.0)
    assert [step.do for step in mine.steps(15.0)] == [Do.TAKE]


def test_a_taken_lease_counts_after_a_look_and_from_the_request_on() -> None:
    mine = Candidate(Me(ME, 1, SECONDS))
    mine.look([], 0.0)
    (step,) = mine.steps(0.0)
    record = replace(changed(step, mine.me, "t"), version="1")
    mine.written(step, record, sent=1.0, now=1.5)
    assert mine.terms == {}
    mine.look([record], 2.0)
    assert mine.terms[0].until == 1.0 + 12.0, "others wait 15 s from when they see it"
    assert mine.steps(6.0) == [Step(Do.RENEW, record)]
    again = replace(changed(Step(Do.RENEW, record), mine.me, "u"), version="2")
    mine.written(Step(Do.RENEW, record), again, sent=6.0, now=6.5)
    assert mine.terms[0].until == 18.0
    term = mine.terms[0]
    mine.run_out(18.0)
    assert mine.terms == {}
    assert term.left() < 0, "a pass of before does not go on with what is taken later"


def test_who_gives_up_holds_nothing_before_the_request_is_sent() -> None:
    mine = Candidate(Me(ME, 1, SECONDS))
    record = Record(0, "1", ME, SECONDS, "t", shards=1)
    mine.look([], 0.0)
    mine.written(Step(Do.TAKE, Record(0)), record, 0.0, 0.0)
    mine.look([record], 0.0)
    term = mine.terms[0]
    (step,) = mine.give_up()
    assert term.left() < 0
    assert changed(step, mine.me, "u") == replace(record, holder="", renewed="u")


# Any interleaving. A candidate is a program of three kinds of moments: the server carries out its
# request, the answer arrives, it thinks. Between any two of them any time may pass.


@dataclass
class Server:
    """Leases with versions: a write on another version than the newest fails."""

    leases: dict[int, Record] = field(default_factory=dict)
    version: int = 0

    def write(self, record: Record) -> Record | None:
        known = self.leases.get(record.shard)
        if record.version != (known.version if known else ""):
            return None
        self.version += 1
        self.leases[record.shard] = replace(record, version=str(self.version))
        return self.leases[record.shard]


class Player:
    """One operator; its clock shows other numbers than the others' do."""

    def __init__(self, server: Server, name: str, shards: int, offset: float) -> None:
        self.server = server
        self.offset = offset
        self.time = 0.0
        self.dropped = False
        """Whether the answer to the next request gets lost."""
        self.candidate = Candidate(Me(name, shards, SECONDS))
        self.program = self._run()

    def now(self) -> float:
        return self.time + self.offset

    def owns(self, pool: str) -> bool:
        term = self.candidate.terms.get(shard_of(pool, self.candidate.me.shards))
        return term is not None and self.now() < term.until

    def _run(self) -> Iterator[None]:
        stamp = 0
        while True:
            yield
            listed = list(self.server.leases.values())
            yield
            if self.dropped:
                continue
            self.candidate.look(listed, self.now())
            yield
            for step in self.candidate.steps(self.now()):
                sent, stamp = self.now(), stamp + 1
                record = changed(step, self.candidate.me, f"{self.candidate.me.identity} {stamp}")
                yield
                after = self.server.write(record)
                yield
                if after is not None and not self.dropped:
                    self.candidate.written(step, after, sent, self.now())


POOLS = [f"team-{number}/pool" for number in range(8)]


@settings(max_examples=600)
@given(
    st.sampled_from([(1, 1, 1), (4, 4, 4), (1, 4, 4), (1, 2, 3), (2, 2, 1)]),
    st.integers(0, 2**32),
)
def test_no_pool_ever_has_two_operators(shards: tuple[int, int, int], seed: int) -> None:
    server, random = Server(), Random(seed)
    players = [
        Player(server, f"operator-{n}", count, offset)
        for n, (count, offset) in enumerate(zip(shards, (0.0, 1e6, -1e6), strict=True))
    ]
    time = 0.0
    for moment in range(500):
        if moment % 25 == 0:  # for a while one is slow, or stopped, and time goes slower or faster
            weights = [random.choice([0, 1, 1, 10]) for _ in players[1:]] + [1]
            pace = random.choice([0.001, 0.1, 0.5, 2.0])
        if moment % 50 == 0:
            random.shuffle(players)
        time += random.choice([0.0, 0.0, 1.0, 2.0]) * pace
        for player in players:
            player.time = time
        for pool in POOLS:
            owners = [p.candidate.me.identity for p in players if p.owns(pool)]
            assert len(owners) <= 1, f"{pool} at {time}: {owners}"
        (player,) = random.choices(players, weights)
        player.dropped = random.random() < 0.1
        next(player.program)


@pytest.mark.parametrize(("shards", "count"), [(1, 2), (2, 2), (4, 3), (8, 3), (9, 4), (2, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_leases_spread_evenly_and_rest_then(shards: int, count: int, seed: int) -> None:
    server, random = Server(), Random(seed)
    players = [Player(server, f"operator-{n}", shards, 0.0) for n in range(count)]
    late = [Player(server, "late", shards, 0.0)]

    def rounds(seconds: int) -> list[int]:
        moments = len(players) * (6 + 2 * shards)  # of a second: about a look of each player
        for _ in range(seconds * moments):
            for each in players:
                each.time += 1.0 / moments
            next(random.choice(players).program)
        return [len(player.candidate.terms) for player in players]

    def rests() -> bool:
        before = {shard: record.holder for shard, record in server.leases.items()}
        rounds(10)
        return before == {shard: record.holder for shard, record in server.leases.items()}

    found = rounds(40)
    assert sum(found) == shards
    assert max(found) - min(found) <= 1
    assert rests()
    late[0].time = players[0].time
    players += late
    found = rounds(40)
    assert sum(found) == shards
    assert max(found) - min(found) <= 1, "one that comes gets its share"
    assert rests()
    gone = players.pop(0)
    found = rounds(40)
    assert sum(found) == shards, f"{gone.candidate.me.identity} died"
    assert max(found) - min(found) <= 1
    assert rests()
