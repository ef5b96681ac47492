"""A pass's place, for tests that run a pass by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lorafleet_operator.rounds import Place, Round, Rounds
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.wake import Wakeups

if TYPE_CHECKING:
    from lorafleet_operator.fair import Places, Turn
    from lorafleet_operator.rounds import Outcome


async def _no_pass(_uid: str, _place: Turn) -> Outcome | None:
    raise AssertionError


def a_place(places: Places | None = None, *, taken: bool = False) -> Place:
    """Return one of `places`, of a round that nobody wakes."""
    rounds = Rounds(_no_pass, wakeups=Wakeups(), settings=OperatorSettings())
    return Place(places or asyncio.Semaphore(1), Round(rounds, "u", "ns/a"), taken=taken)
