"""What people see: the output of the real `kubectl describe`, taken apart."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_FIELD = re.compile(r"^    (?P<name>[A-Z][A-Za-z ]*):\s+(?P<value>.*)$")
_EVENT = re.compile(
    r"^  (Normal|Warning)\s+(?P<reason>\w+)\s+.*?lorafleet-operator\s+(?P<text>.*)$"
)


@dataclass(frozen=True)
class Described:
    """The conditions and Events of one object, as they were printed."""

    text: str
    conditions: dict[str, tuple[str, str, str]]
    """Type -> status, reason, message."""
    events: list[tuple[str, str]]
    """Reason and message."""

    def tells(self, condition: str, reason: str, text: str) -> bool:
        """Return whether a condition is False for the reason, with the text in one line, and an Event
        says the same."""
        events = any(why == reason and text in told for why, told in self.events)
        return events and self.says(condition, reason, text)

    def says(self, condition: str, reason: str, text: str) -> bool:
        """Return whether a condition is False for the reason, with the text in one line."""
        status, why, message = self.conditions.get(condition, ("", "", ""))
        return (status, why) == ("False", reason) and text in message


def describe(kubectl: Path, kubeconfig: Path, namespace: str, kind: str, name: str) -> Described:
    """Run `kubectl describe KIND NAME`."""
    command: list[Any] = [kubectl, "--kubeconfig", kubeconfig, "--namespace", namespace]
    command += ["--cache-dir", kubeconfig.parent / "discovery", "describe", kind, name]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse(run.stdout)


def parse(text: str) -> Described:
    """Take the output apart."""
    above, _, below = text.partition("\nEvents:")
    conditions = {}
    entry: dict[str, str] = {}
    for line in above.partition("\n  Conditions:\n")[2].splitlines():
        found = _FIELD.match(line)
        if found is None:
            break
        entry[found["name"]] = found["value"]
        if found["name"] == "Type":  # the last one of each, by the alphabet
            conditions[found["value"]] = (entry["Status"], entry["Reason"], entry["Message"])
            entry = {}
    events = [
        (found["reason"], found["text"]) for found in map(_EVENT.match, below.splitlines()) if found
    ]
    return Described(text, conditions, events)
