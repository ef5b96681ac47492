"""`kubectl lora why NAME`: an adapter's conditions, its engines, and why each one has it or not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lorafleet_operator.api import names
from lorafleet_operator.api.names import short
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.explain import Why, why
from lorafleet_operator.kubectl import api, lookup
from lorafleet_operator.kubectl.api import Failed
from lorafleet_operator.kubectl.text import Table, printable

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import AdapterEngine
    from lorafleet_operator.kubectl.api import Kubectl

_UNKNOWN = "not among the engines that the pool's status names"


@dataclass(frozen=True)
class Told:
    """Why an adapter is where it is, and what whoever asks may not read of that."""

    why: Why
    notes: tuple[str, ...] = ()
    """Without the pool there is no plan, only what the adapter's own status tells."""


async def read(kubectl: Kubectl, namespace: str, name: str) -> Told:
    """Return what the cluster says of an adapter, as far as it may be read.

    Raises Failed and InvalidManifest, each with one line.
    """
    # Tells who is missing, which names are near, and whose own adapter it is that may be read alone.
    body = lookup.adapter(kubectl, namespace, name)
    notes: dict[str, str] = {}

    async def get(place: str) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(kubectl.get, place)
        except Failed as error:
            if error.reason != "Forbidden":
                raise NoAnswer(str(error)) from None
            notes[place] = f"left out: {error}"
            only = [body] if place == api.path(names.ADAPTER_PLURAL, namespace) else []
            return {"items": only, "metadata": {}}

    found = await reads.everything(get, namespace)
    told = why(found, f"{namespace}/{name}")
    away = told.adapter.pool_namespace
    if away != namespace:  # whoever shares the pool is there, or here
        told = why([*found, *await reads.everything(get, away)], f"{namespace}/{name}")
    if api.path(names.POOL_PLURAL, away) in notes:
        told = replace(told, plan=None)
    return Told(told, tuple(notes.values()))


def to_json(told: Told) -> dict[str, Any]:
    """Return it for programs; the fields are stable."""
    found = told.why
    status = found.adapter.status.to_api()
    nothing: dict[str, Any] = {"wanted": None, "chosen": [], "blocked": None, "engines": []}
    plan: dict[str, Any] = {"adapter": found.adapter.key, **nothing}
    if found.plan is not None:
        plan = found.plan.to_json()
    entries = {each["podName"]: each for each in status.get("engines", ())}
    lines: dict[str, dict[str, Any]] = {each["engine"]: each for each in plan["engines"]}
    unknown = _UNKNOWN if found.plan is not None else ""
    absent = {"verdict": "", "reason": "", "message": unknown, "standing": ""}
    return {
        **plan,
        "pool": found.adapter.pool_key,
        "servedName": found.adapter.served_name,
        "digest": status.get("digest", ""),
        "conditions": status.get("conditions", []),
        "refusals": status.get("refusals", []),
        "notes": list(told.notes),
        "engines": [
            {"engine": name, **(lines.get(name) or absent), "has": entries.get(name)}
            for name in sorted({*lines, *entries})
        ],
    }


def to_text(told: Told, *, colour: bool = False) -> list[str]:
    """Return it for people, as lines."""
    adapter, plan = told.why.adapter, told.why.plan
    status = adapter.status
    wanted = adapter.spec.revision or status.digest
    head = [
        f"LoRAAdapter {adapter.key}, served as {adapter.served_name}, pool {adapter.pool_key}",
        f"revision {short(wanted) or 'not known yet'}"
        f", {status.ready_engines} of {status.desired_engines} engines serve it",
    ]
    if status.observed_generation != adapter.metadata.generation:
        head.append("the operator has not looked at the present spec yet")
    if adapter.metadata.deletion_timestamp:
        head.append("it is being deleted")
    conditions = [(c.type, c.status, c.reason, c.message) for c in status.conditions]
    table = Table(("CONDITION", "STATUS", "REASON", "MESSAGE"), colour=colour)
    parts = [*map(printable, head), "", *table.lines(conditions)]
    entries = {each.pod_name: each for each in status.engines}
    lines = {each.engine: each for each in plan.engines} if plan else {}
    if plan and plan.blocked:
        parts += ["", printable(f"{plan.blocked[0]}: {plan.blocked[1]}")]
    rows = []
    for name in sorted({*lines, *entries}):
        line, entry = lines.get(name), entries.get(name)
        said = [line.text if line else _UNKNOWN if plan else "", entry.message if entry else ""]
        why_not = "; ".join(dict.fromkeys(filter(None, said)))
        rows.append((name, line.verdict if line else "?", *_has(entry, wanted), why_not))
        if line and line.standing:
            rows.append((" ", " ", " ", " ", f"({line.standing})"))
    if rows:
        table = Table(("ENGINE", "PLAN", "HAS", "TIER", "WHY"), colour=colour)
        parts += ["", *table.lines(rows)]
    return parts + [printable(f"note: {note}") for note in told.notes]


def _has(entry: AdapterEngine | None, digest: str) -> tuple[str, str]:
    if entry is None or not entry.digest:
        return "-", "-"
    which = "wanted" if entry.digest == digest else short(entry.digest)
    served = f"{which}, served" if entry.published else f"{which}, not served"
    return served + (f", {entry.in_flight} running" if entry.in_flight else ""), str(entry.tier)
