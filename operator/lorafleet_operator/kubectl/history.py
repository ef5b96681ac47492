"""`kubectl lora history NAME`: the revisions of an adapter that its status tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.kubectl import adapters
from lorafleet_operator.kubectl.ls import short
from lorafleet_operator.kubectl.text import Table, age, printable
from lorafleet_operator.kubectl.views import VERSION

if TYPE_CHECKING:
    from lorafleet_operator.kubectl.views import History

HEAD: Final = (
    "REVISION",
    "STATE",
    "ENGINES",
    "STAGED",
    "IN FLIGHT",
    "SINCE",
    "ASKED BY",
    "MESSAGE",
)


def history(body: dict[str, Any]) -> History:
    """Return the history of an adapter."""
    return {
        "apiVersion": VERSION,
        "kind": "History",
        "adapter": f"{body['metadata']['namespace']}/{body['metadata']['name']}",
        "pinnedRevision": adapters.text(body, "spec", "revision"),
        "source": adapters.text(body, "status", "resolvedRevision"),
        "revisions": adapters.revisions(body),
    }


def lines(found: History, *, colour: bool, wide: bool) -> list[str]:
    """Return it for people."""
    pinned = found["pinnedRevision"]
    told = "follows its source"
    if pinned:
        told = f"is kept at {short(pinned)} by spec.revision"
    elif found["source"]:
        told += f", last read as {found['source']}"
    first = printable(f"LoRAAdapter {found['adapter']} {told}")
    if not found["revisions"]:
        return [first, "no revision is known yet"]
    rows = [
        (
            each["digest"] if wide else short(each["digest"]),
            each["state"] + (", stable" if each["stable"] and each["state"] != "current" else ""),
            each["engines"],
            {True: "yes", False: "no", None: ""}[each["staged"]],
            "" if each["inFlight"] is None else each["inFlight"],
            f"{age(each['time'])} ago" if age(each["time"]) else "",
            each["askedBy"],
            each["message"],
        )
        for each in found["revisions"]
    ]
    return [first, "", *Table(HEAD, colour=colour).lines(rows)]
