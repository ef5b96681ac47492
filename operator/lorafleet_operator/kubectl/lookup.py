"""One adapter by its name, and what people may have meant when there is none."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import api

if TYPE_CHECKING:
    from lorafleet_operator.kubectl.api import Kubectl


def adapter(kubectl: Kubectl, namespace: str, name: str) -> dict[str, Any]:
    """Return an adapter's body. Raises Failed, with names that are near if there is none."""
    try:
        api.named(name)
    except api.Failed:
        text = f"{name!r} is no name of a {names.ADAPTER_KIND}; the namespace is given by -n"
        raise api.Failed(text) from None
    try:
        return kubectl.get(api.path(names.ADAPTER_PLURAL, namespace, name))
    except api.Failed as error:
        if error.reason != "NotFound":
            raise
        raise missing(kubectl, namespace, name) from None


def missing(kubectl: Kubectl, namespace: str, name: str) -> api.Failed:
    """Return the complaint that there is no such adapter."""
    text = f"{names.ADAPTER_KIND} {namespace}/{name} does not exist"
    try:
        known = kubectl.names(api.path(names.ADAPTER_PLURAL, namespace))
    except api.Failed:  # who may get and not list is told no names
        return api.Failed(text, "NotFound")
    if not known:
        return api.Failed(f"{text}: the namespace has no adapters", "NotFound")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return api.Failed(text + (f"; did you mean {' or '.join(near)}?" if near else ""), "NotFound")
