"""A pass runs only while its object's pool is this operator's, and within that term."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.rounds import Outcome
from lorafleet_operator.term import TermOver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lorafleet_operator.fair import Turn
    from lorafleet_operator.fleet import Fleet

    OnePass = Callable[[str, Turn, Fleet], Awaitable[Outcome | None]]

_LOG: Final = logging.getLogger(__name__)


def pool_of_pool(body: Mapping[str, Any]) -> str:
    """Return the key of a pool."""
    return names.pool_key(body["metadata"]["namespace"], body["metadata"]["name"])


def pool_of_adapter(body: Mapping[str, Any]) -> str:
    """Return the key of the pool that an adapter names, which may not exist."""
    reference = body["spec"]["poolRef"]
    return names.pool_key(
        reference.get("namespace") or body["metadata"]["namespace"], reference["name"]
    )


def gated(
    one_pass: OnePass, pool_of: Callable[[Mapping[str, Any]], str], fleet: Fleet
) -> Callable[[str, Turn], Awaitable[Outcome | None]]:
    """Return the pass for Rounds. What is not this operator's is looked at when it becomes so."""

    async def run(uid: str, place: Turn) -> Outcome | None:
        body = fleet.bodies.get(uid)
        if body is None:
            return None
        pool = pool_of(body)
        term = fleet.term(pool)
        idle = Outcome(well=True)
        if term is None:
            if fleet.world.gone(uid):
                fleet.forget_adapter(uid, pool_of_pool(body))
                return None
            return idle
        del body
        try:
            with term.acting():
                return await one_pass(uid, place, fleet)
        except TermOver as error:
            _LOG.info("%s: a pass was cut off: %s", pool, error)
            return idle
        except NoAnswer as error:
            _LOG.warning("%s: a pass is tried again: %s", pool, error)
            return Outcome(well=False, interval=0.0)

    return run
