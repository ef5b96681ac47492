"""Why an adapter is where it is: one line for each engine, and one for what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth

from .capacity import QUOTAS, Shortage, name_of, quota_text, shortage_text
from .filters import Refusal, filter_refusal, mebibytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .board import Carrier
    from .demands import AdapterDemand
    from .entry import Entry
    from .planner import Planner

_NAMED_ENGINES: Final = 5
"""How many engines a message names before it only counts them."""


class Verdict(StrEnum):
    """What became of one engine for one adapter."""

    CHOSEN = "chosen"
    REFUSED = "refused"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class EngineLine:
    """Why one engine has the adapter or not."""

    engine: str
    verdict: Verdict
    text: str
    reason: Reason | None = None
    """For programs, of a refusal."""
    standing: str = ""
    """What scores compare, of the engine as it is planned: load, room, ranks and place."""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.text}"


@dataclass(frozen=True)
class Explanation:
    """Where one adapter goes and why, engine by engine, in the order of their names.

    `blocked`: why it gets fewer engines than `wanted`, None if it gets them all.
    """

    adapter: str
    chosen: tuple[str, ...]
    wanted: int
    blocked: tuple[Reason, str] | None
    engines: tuple[EngineLine, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON; the fields are stable."""
        blocked = self.blocked and {"reason": self.blocked[0], "message": self.blocked[1]}
        return {
            "adapter": self.adapter,
            "wanted": self.wanted,
            "chosen": list(self.chosen),
            "blocked": blocked,
            "engines": [
                {
                    "engine": line.engine,
                    "verdict": line.verdict,
                    "reason": line.reason or "",
                    "message": line.text,
                    "standing": line.standing,
                }
                for line in self.engines
            ],
        }

    def __str__(self) -> str:
        """The explanation for people: what is lacking, then one line for each engine."""
        lines = [f"{self.adapter}: {len(self.chosen)} of {self.wanted} engines"]
        if self.blocked:
            lines.append(f"  {self.blocked[0]}: {self.blocked[1]}")
        return "\n".join([*lines, *map(_line, self.engines)])


def _line(line: EngineLine) -> str:
    more = f" ({line.standing})" if line.standing else ""
    return f"  {line.engine}: {line}{more}"


def standing(demand: AdapterDemand, carrier: Carrier) -> str:
    """Return what the scores compare of one engine, for people; nothing of one that is unknown."""
    engine, load = carrier.engine, carrier.load
    if not engine.arena_limit_bytes:
        return ""
    said = [f"{load.adapters} adapters"]
    if engine.max_cpu_loras:
        said.append(f"{load.reserved} of {engine.max_cpu_loras} places kept")
    if engine.max_loras:
        said.append(f"{load.pinned} of {engine.max_loras} slots pinned")
    said.append(f"{mebibytes(load.size_bytes)} of {mebibytes(engine.capacity_bytes)}")
    if engine.tensor_parallel_size > 1:
        said.append(f"{mebibytes(load.size_bytes // engine.tensor_parallel_size)} for each GPU")
    if engine.max_lora_rank:
        said.append(f"rank up to {engine.max_lora_rank}")
    said += [
        f"{word} {where}" for word, where in (("node", engine.node), ("zone", engine.zone)) if where
    ]
    if demand.digest and demand.digest in engine.staged:
        said.append("content staged")
    return ", ".join(said)


def explanation(planner: Planner, key: str) -> Explanation:
    """Return why the adapter is where it is. Raises KeyError for one that is not in the plan."""
    entry = planner.entries[key]
    want = wanted(planner, entry)
    return Explanation(
        adapter=key,
        chosen=tuple(sorted(entry.chosen)),
        wanted=want,
        blocked=blocked(planner, entry, want),
        engines=tuple(
            replace(line, standing=standing(entry.demand, planner.board.carriers[line.engine]))
            for line in _lines(planner, entry, planner.board.carriers, want)
        ),
    )


def wanted(planner: Planner, entry: Entry) -> int:
    """Return how many engines should serve the adapter.

    Spread and BinPack: its replicas. OnDemand: those that have it, one if none ever could. All:
    the engines that could take it, with room or without, those that refuse adapters (a person has
    to mend them), and those that had it and are down. An engine that only starts for the first
    time, serves another base model or too small a rank, or is cordoned, is none of them.
    """
    demand = entry.demand
    if demand.limit is not None:
        return demand.limit + len(entry.guests)
    if demand.on_demand:
        return len(entry.chosen) or int(_nowhere(planner, entry))
    count, by_holder = 0, set()
    for kind in planner.board.kinds.values():
        engine = kind.sample
        if engine.health is EngineHealth.REFUSED:
            count += kind.size
        elif not engine.healthy:
            by_holder.add(kind)
        elif filter_refusal(demand, engine, held=False) is None:
            count += kind.size
        elif filter_refusal(demand, engine, held=True) is None:
            by_holder.add(kind)
    if by_holder:
        carriers = planner.board.carriers
        held = planner.holders(demand)
        count += sum(name in carriers and carriers[name].kind in by_holder for name in held)
    return count


def blocked(planner: Planner, entry: Entry, want: int) -> tuple[Reason, str] | None:
    """Return why the adapter gets fewer engines than it wants (`want`), None if it gets them all."""
    chosen = len(entry.chosen)
    carriers = planner.board.carriers
    if entry.demand.on_demand and not want:
        return None
    if chosen and chosen >= want:
        return None
    if used_up := _used_up(planner, entry):
        return used_up.reason, used_up.text
    if not carriers:
        return Reason.NO_MATCHING_ENGINES, "the pool has no engines"
    counts = f"{chosen} of {max(want, 1)} engines"
    refused = carriers.keys() - entry.chosen.keys()
    if not refused:
        return Reason.NO_CAPACITY, f"{counts}: the pool has {len(carriers)}"
    shown = sorted(refused)[:_NAMED_ENGINES]
    details = [f"{line.engine}: {line.text}" for line in _lines(planner, entry, shown, want)]
    if len(refused) > len(shown):
        details.append(f"and {len(refused) - len(shown)} more")
    # One engine of each kind says what all say, but for those that have the adapter.
    samples = {carriers[name].kind: name for name in refused}
    said = {*samples.values(), *(planner.holders(entry.demand) & refused)}
    reasons = {line.reason for line in _lines(planner, entry, said, want) if line.reason}
    short = entry.demand.limit is not None and bool(chosen)
    return _summary(reasons, short=short), f"{counts}: {'; '.join(details)}"


_LASTING: Final = frozenset(
    {Reason.BASE_MODEL_MISMATCH, Reason.RANK_TOO_HIGH, Reason.TOO_LARGE, Reason.PLUGIN_INACTIVE}
)


def lacks_piece(planner: Planner, entry: Entry) -> bool:
    """Return whether an engine has room for the adapter but for what else its arena holds now."""
    carriers, chosen = planner.board.carriers, entry.chosen
    return any(
        carrier.lacks(entry.demand, held=False) is Shortage.PIECE
        for name, carrier in carriers.items()
        if name not in chosen
    )


def _nowhere(planner: Planner, entry: Entry) -> bool:
    """Return whether every engine lacks for good what the adapter needs: no request would help."""
    kinds = planner.board.kinds.values()
    refusals = [filter_refusal(entry.demand, kind.sample, held=False) for kind in kinds]
    return bool(refusals) and all(each and each.reason in _LASTING for each in refusals)


def displaced_from(planner: Planner, entry: Entry) -> frozenset[str]:
    """Return the engines that have the adapter loaded but gave its place to others.

    To more important ones, or to what is guaranteed to other tenants.
    """
    carriers, demand = planner.board.carriers, entry.demand
    return frozenset(
        name
        for name in planner.board.loaded_on(demand.key)
        if name not in entry.chosen and (demand.on_demand or _outranked(entry, carriers[name]))
    )


def over_quota_on(planner: Planner, entry: Entry) -> frozenset[str]:
    """Return the engines that have the adapter loaded but not in the plan, for want of quota."""
    carriers, all_used = planner.board.carriers, _used_up(planner, entry) is not None
    return frozenset(
        name
        for name in planner.board.loaded_on(entry.demand.key)
        if name not in entry.chosen
        and (all_used or carriers[name].over_quota(entry.demand) is not None)
    )


def _used_up(planner: Planner, entry: Entry) -> Refusal | None:
    rule = None if entry.chosen else planner.books.used_up(entry.demand)
    if rule is None:
        return None
    tenant = entry.demand.tenant
    count = f"{planner.books.placed[tenant]} of {rule.adapters}"
    return Refusal(Reason.QUOTA_EXCEEDED, f"tenant {name_of(tenant)} has {count} adapters")


def unmet(planner: Planner, entry: Entry, names: Iterable[str]) -> dict[str, str]:
    """Return why the adapter is not on those of the engines `names` where it is not."""
    found = {}
    want = wanted(planner, entry)
    for line in _lines(planner, entry, planner.board.carriers.keys() & set(names), want):
        if line.verdict is not Verdict.CHOSEN:
            found[line.engine] = line.text
    return found


def _lines(planner: Planner, entry: Entry, names: Iterable[str], want: int) -> Iterator[EngineLine]:
    """Yield one line for each of these engines, by their names."""
    demand, loaded = entry.demand, planner.board.loaded_on(entry.demand.key)
    holders, used_up = planner.holders(demand), _used_up(planner, entry)
    enough = f"{len(entry.chosen)} of {want} engines chosen"
    if demand.on_demand:
        enough = "no request has asked for it there"
    for name in sorted(names):
        if name in entry.chosen:
            why = "has it already" if name in loaded else entry.chosen[name]
            if name in entry.guests:
                why = f"{why}, beside its replicas: a request asked for it there"
            if name in demand.refused:
                why = f"{why}, though it refuses the content: {demand.refused[name]}"
            yield EngineLine(name, Verdict.CHOSEN, why)
            continue
        refusal = _refusal(entry, planner.board.carriers[name], held=name in holders) or used_up
        if refusal is not None:
            yield EngineLine(name, Verdict.REFUSED, refusal.text, refusal.reason)
        else:
            yield EngineLine(name, Verdict.NOT_NEEDED, enough)


def _refusal(entry: Entry, carrier: Carrier, *, held: bool) -> Refusal | None:
    demand, engine = entry.demand, carrier.engine
    refusal = filter_refusal(demand, engine, held=held)
    if refusal is not None:
        return refusal
    lacking = carrier.lacks(demand, held=held)
    if lacking is not None:
        return _no_room(lacking, entry, carrier, held=held)
    if engine.pod_name in demand.refused:
        return Refusal(Reason.ENGINE_REJECTED, demand.refused[engine.pod_name])
    return None


def _no_room(lacking: Shortage, entry: Entry, carrier: Carrier, *, held: bool) -> Refusal:
    demand, shares = entry.demand, carrier.shares
    rule = None if carrier.tenancy is None else carrier.tenancy.rule(demand.tenant)
    if lacking in QUOTAS and rule is not None and shares is not None:
        return Refusal(
            Reason.QUOTA_EXCEEDED, quota_text(lacking, demand, rule, shares.load(demand.tenant))
        )
    text = shortage_text(lacking, demand, carrier.engine, carrier.load, shares)
    takers = _takers(lacking, demand, carrier)
    reason = Reason.PREEMPTED if held and takers else Reason.NO_CAPACITY
    return Refusal(reason, "; ".join([text, *takers]))


def _takers(lacking: Shortage, demand: AdapterDemand, carrier: Carrier) -> list[str]:
    """Return who has what is lacking and cannot be asked to leave, by what right."""
    shares, guarded = carrier.shares, set()
    if shares is not None:
        own = demand.tenant
        having = [o for o in carrier.adapters.values() if _has(o, lacking) and o.tenant != own]
        guarded = {other.key for other in having if shares.guards(other)}
    higher = set(_higher(lacking, demand, carrier)) - guarded
    always = {key for key in higher if demand.on_demand and not carrier.adapters[key].on_demand}
    rights = {
        " within another tenant's guarantee": guarded,
        ", not on demand": always,
        " of higher priority": higher - always,
    }
    found = []
    for right, keys in rights.items():
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            found.append(f"{min(keys)}{more}{right}")
    return found


def _has(other: AdapterDemand, lacking: Shortage) -> bool:
    """Return whether it has of what is lacking: a slot has only who pins one."""
    return (other.pinned or lacking is not Shortage.SLOTS) and (
        other.reserved or lacking is not Shortage.PLACES
    )


def _outranked(entry: Entry, carrier: Carrier) -> bool:
    demand = entry.demand
    lacking = carrier.lacks(demand, held=True)
    if lacking is None or lacking in QUOTAS or filter_refusal(demand, carrier.engine, held=True):
        return False
    if carrier.shares is not None and carrier.shares.kept.keys() - {demand.tenant}:
        return True
    return bool(_higher(lacking, demand, carrier))


def _higher(lacking: Shortage, demand: AdapterDemand, carrier: Carrier) -> list[str]:
    """Return the more important adapters that have what is lacking."""
    return [
        other.key
        for other in carrier.adapters.values()
        if other.weight > demand.weight and _has(other, lacking)
    ]


def _summary(reasons: set[Reason], *, short: bool) -> Reason:
    """Return one reason for all refusals; `short`: some replicas are placed, others have no place."""
    if Reason.QUOTA_EXCEEDED in reasons:
        return Reason.QUOTA_EXCEEDED
    if Reason.PREEMPTED in reasons:
        return Reason.PREEMPTED
    if Reason.NO_CAPACITY in reasons or short:
        return Reason.NO_CAPACITY
    if len(reasons) == 1:
        return next(iter(reasons))
    return Reason.NO_MATCHING_ENGINES
