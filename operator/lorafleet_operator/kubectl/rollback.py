"""`kubectl lora rollback NAME`: spec.revision names an earlier revision; engines have it still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import adapters, api, lookup
from lorafleet_operator.kubectl.ls import short

if TYPE_CHECKING:
    from lorafleet_operator.kubectl.api import Kubectl
    from lorafleet_operator.kubectl.screen import Progress

SOURCE: Final = "source"
"""What `--to` calls the way forward again: what the source holds."""
HOPELESS: Final = frozenset({"RevisionNotStaged", "Paused", "NotGranted", "PoolNotFound"})
"""Reasons that do not pass by waiting."""
FIELD_MANAGER: Final = "kubectl-lora"
_SHORTEST: Final = 4
_POLL_SECONDS: Final = 0.5


def target(body: dict[str, Any], to: str) -> str:
    """Return the digest that `to` names, "" for what the source holds.

    to: a digest or its beginning, `source`, or "" for the revision before the current one.
    Raises Failed.
    """
    if to == SOURCE:
        return ""
    known = [one for one in adapters.revisions(body) if one["state"] != "draining"]
    current = adapters.text(body, "status", "digest")
    if not to:
        earlier = [one["digest"] for one in known if one["state"] == "earlier"]
        if not earlier:
            raise api.Failed("it has no earlier revision that is still staged")
        return earlier[0]
    wanted = to.removeprefix("sha256:").lower()
    if len(wanted) < _SHORTEST:
        raise api.Failed(f"revision {to!r} is too short: give at least {_SHORTEST} digits")
    # One that was given up can be asked for again only where the source still holds it.
    offered = [one["digest"] for one in known if one["state"] != "given up"]
    found = [digest for digest in offered if digest.removeprefix("sha256:").startswith(wanted)]
    if len(found) == 1:
        return found[0]
    marked = (short(each) + (" (current)" if each == current else "") for each in found or offered)
    which = ", ".join(marked) or "none"
    if found:
        raise api.Failed(f"revision {to} may be any of {which}")
    raise api.Failed(f"it has no revision {to}; there are: {which}")


def write(kubectl: Kubectl, body: dict[str, Any], digest: str, *, dry_run: bool) -> dict[str, Any]:
    """Make `digest` the adapter's spec.revision; return it as it was written.

    It is written as it was read: whoever changed it meanwhile is not overwritten. Raises Failed.
    """
    spec = {key: value for key, value in body["spec"].items() if key != "revision"}
    if digest:
        spec["revision"] = digest
    if spec == body["spec"]:
        return body
    metadata = body["metadata"]
    place = api.path(names.ADAPTER_PLURAL, metadata["namespace"], metadata["name"])
    query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
    try:
        return kubectl.put(place, {**body, "spec": spec}, query)
    except api.Failed as error:
        if error.reason != "Conflict":
            raise
        text = "somebody else changed the adapter meanwhile: look again, and repeat it"
        raise api.Failed(text, error.reason) from None


def wait(
    kubectl: Kubectl, written: dict[str, Any], progress: Progress, seconds: float
) -> tuple[bool, str]:
    """Return whether the engines serve what was written within `seconds`, and what was said last.

    Raises Failed, when the adapter is gone or cannot be read any more.
    """
    metadata = written["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    deadline = time.monotonic() + seconds
    while True:
        body = lookup.adapter(kubectl, namespace, name)
        done, text, hopeless = standing(body, metadata["generation"])
        shown = adapters.view(body)
        ready = shown["readyEngines"] if shown["observed"] else 0  # of another spec
        progress.show(ready, shown["desiredEngines"], text)
        if done or hopeless or time.monotonic() >= deadline:
            progress.clear()
            return done, text
        time.sleep(_POLL_SECONDS)


def standing(body: dict[str, Any], generation: int) -> tuple[bool, str, bool]:
    """Return whether an adapter is Ready for a spec, what is said of it, and whether waiting is vain."""
    if adapters.at(body, "metadata", "annotations", names.ANNOTATION_PAUSED) == "true":
        return False, f"Paused: the annotation {names.ANNOTATION_PAUSED} keeps it as it is", True
    if (adapters.number(body, "metadata", "generation") or 0) > generation:
        return False, "Changed: somebody has changed the spec again", True
    ready = adapters.condition(body, "Ready")
    seen = adapters.number(ready, "observedGeneration") or 0
    if seen < generation or not adapters.observed(body):
        return False, "the operator has not looked at it yet", False
    reason, message = adapters.text(ready, "reason"), adapters.text(ready, "message")
    wanted = adapters.text(body, "spec", "revision")
    served = not wanted or adapters.text(body, "status", "digest") == wanted
    done = ready.get("status") == "True" and served
    return done, f"{reason}: {message}" if message else reason, not done and reason in HOPELESS
