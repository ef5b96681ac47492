"""What an operator before this one has decided: asked of the API server, for a watch may be behind.

Nothing else of a status is a promise. What stands in it too late costs a look or an order that was
given before; a decision that is not seen would have an engine serve the revision of before again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator import term
from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import NoAnswer, ask, one_line, path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.fleet import Fleet

_KIND: Final = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)


async def caught_up(body: dict[str, Any], fleet: Fleet) -> dict[str, Any]:
    """Return the newest body of an adapter whose engines all change at once, read once in a term.

    From then on this operator alone writes its status. Other bodies are returned as they are.
    Raises NoAnswer.
    """
    mine, uid = term.current(), body["metadata"]["uid"]
    if mine is None or fleet.memory.read_in(uid) is mine or not _may_be_decided(body):
        return body
    key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
    place = path(_KIND, *key.split("/"))
    try:
        with one_line(f"adapter {key}"):
            fleet.bodies.answered(await ask(fleet.api, "GET", place))
    except NoAnswer as error:
        if error.status != 404:  # gone: the watch will say so
            raise
    fleet.memory.keep_read(uid, mine)
    return fleet.bodies.newest(body)


def _may_be_decided(body: Mapping[str, Any]) -> bool:
    rule = body["spec"].get("rollout") or {}
    return bool(rule.get("atomic") or (body.get("status") or {}).get("decided"))
