"""What has to be done next for one adapter: pure decisions from gathered facts.

A revision goes out in two phases. First the engines of a wave stage and load it beside what they
serve; then the served name moves on each. While another revision is served anywhere and an engine
of the wave has not loaded the new one, no name moves: a refusal leaves the old revision everywhere.
Once the new one is published somewhere the others may follow one by one, for then it has proved
itself and an engine that restarted must not wait.

A wave is as many engines as may hold two revisions at once (`max_surge`), all of them by default.
An engine that has no room for two, or may not hold two, unloads the old one first, if so many
engines may be without any (`max_unavailable`).

Where all engines change at once or not at all (`decided`), no name moves to the new revision before
that is decided, and one refusal takes it out of every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

STOCK: Final = "stock"
"""The loader of an engine without the plugin, which has no other."""


@dataclass(frozen=True)
class Loaded:
    """One revision that an engine has loaded for the adapter."""

    digest: str
    served_name: str
    loader: str = "direct"
    published: bool = False
    residency: str = ""
    """What the engine keeps of it, as sidecars are told (`LoadAdapterRequest.residency`)."""
    draining: bool = False
    """Whether the sidecar unloads it once no request runs on it: it was replaced, or refused."""
    unproved: bool = False
    """Whether the sidecar has yet to find out whether it is right: it may be refused."""


@dataclass(frozen=True)
class Holding:
    """What one engine has of the adapter, and whether it can be asked for anything."""

    engine: str
    desired: bool = True
    residency: str = ""
    """What this engine should keep of the adapter."""
    takes_orders: bool = True
    digest: str = ""
    """Digest of the wanted revision on this engine, "" while it is not staged."""
    loaded: tuple[Loaded, ...] = ()
    refused: bool = False
    """Whether this engine refused the wanted revision for good."""
    displaced: bool = False
    """Whether more important adapters got its place on this engine."""
    leaving: bool = False
    """Whether the engine is drained: it goes on serving whoever still reaches it."""
    proved: bool = False
    """Whether the wanted revision has been served before: going back to it needs no proof."""
    full: bool = False
    """Whether its arena has no room for the wanted revision beside what is loaded."""
    fits: bool = True
    """Whether there is room once the engine has unloaded what it serves of the adapter."""
    keeps_others: bool = False
    """Whether it keeps other earlier revisions for a rollback than it should."""


@dataclass(frozen=True)
class Wanted:
    """How the adapter should be served."""

    served_name: str
    loader: str = "direct"
    holdings: tuple[Holding, ...] = field(default=())
    max_unavailable: int = 0
    """Most engines without any revision during an update."""
    max_surge: int | None = None
    """Most engines that hold two revisions at once, None for all."""
    decided: bool | None = None
    """Whether it is decided that all engines serve the wanted revision, if they do so at once or not
    at all; None: names move as the limits allow."""

    def desired(self) -> list[Holding]:
        """Return the holdings of the engines that should serve the adapter."""
        return [holding for holding in self.holdings if holding.desired]


def has_loaded(wanted: Wanted, holding: Holding) -> bool:
    """Return whether the engine has the wanted revision loaded as wanted."""
    return any(_is_wanted(wanted, holding, entry) for entry in holding.loaded)


def serves(wanted: Wanted, holding: Holding) -> bool:
    """Return whether the wanted name points at the wanted revision on this engine."""
    return any(_is_wanted(wanted, holding, each) and each.published for each in holding.loaded)


def wave(wanted: Wanted) -> set[str]:
    """Return the engines that may hold the wanted revision beside another one that they serve.

    Those that do so already, then those that have it staged, then by name. Where old revisions are
    still drained they count too, unless all engines may hold two.
    """
    waiting = [holding for holding in wanted.desired() if _replaces(wanted, holding)]
    if wanted.max_surge is None or wanted.max_surge >= len(wanted.desired()):
        return {h.engine for h in waiting if not (h.full and wanted.max_unavailable)}
    doubled = {h.engine for h in wanted.desired() if _holds_two(wanted, h)}
    others = sorted((not h.digest, h.engine) for h in waiting if h.engine not in doubled)
    room = max(0, wanted.max_surge - len(doubled))
    joining = {engine for _, engine in others[:room]}
    return {h.engine for h in waiting if h.engine in doubled or h.engine in joining} - {
        h.engine for h in waiting if h.full and wanted.max_unavailable
    }


def to_stage(wanted: Wanted) -> list[str]:
    """Return the engines that the wanted revision has to be sent to.

    An engine whose vLLM is restarting is sent it too: its sidecar takes it meanwhile.
    """
    moving = wave(wanted)
    return [
        holding.engine
        for holding in _asked(wanted)
        if not holding.digest
        and not holding.refused
        and (holding.engine in moving or not _replaces(wanted, holding))
    ]


def to_load(wanted: Wanted) -> list[str]:
    """Return the engines that have to load the wanted revision beside what they serve."""
    moving = wave(wanted)
    return [
        holding.engine
        for holding in _asked(wanted)
        if holding.digest
        and holding.takes_orders
        and not holding.refused
        and not has_loaded(wanted, holding)
        and (holding.engine in moving or not _replaces(wanted, holding))
    ]


def may_publish(wanted: Wanted) -> bool:
    """Return whether served names may move to a revision that has yet to prove itself."""
    if wanted.decided is not None:
        return wanted.decided
    new = [holding for holding in wanted.holdings if not holding.proved]
    if any(serves(wanted, holding) for holding in new):
        return True
    if not any(_served(wanted, holding) for holding in wanted.holdings):
        return True
    lacking = _lacking(wanted)
    if any(holding.takes_orders for holding in lacking):
        return False
    return not lacking or len(_without_any(wanted)) <= wanted.max_unavailable


def to_publish(wanted: Wanted) -> list[str]:
    """Return the engines on which the served name (or what is kept) has to be moved."""
    free = may_publish(wanted)
    return [
        holding.engine
        for holding in wanted.desired()
        if holding.takes_orders
        and has_loaded(wanted, holding)
        and (free or holding.proved)
        and not _published_as_wanted(wanted, holding)
    ]


def to_make_room(wanted: Wanted) -> list[str]:
    """Return the engines that unload what they serve before they are sent the wanted revision.

    One that is down counts as without any too. Before a new revision is served somewhere only one
    engine risks it.
    """
    spare = wanted.max_unavailable - len(_without_any(wanted))
    new = [holding for holding in wanted.desired() if not holding.proved]
    if new and not any(serves(wanted, holding) for holding in new):
        spare = min(spare, 1 - sum(h.takes_orders and not _served(wanted, h) for h in new))
    waiting = [
        holding.engine
        for holding in wanted.desired()
        if holding.takes_orders
        and holding.fits
        and not holding.refused
        and (holding.full or wanted.max_surge == 0)
        and _replaces(wanted, holding)
        and not has_loaded(wanted, holding)
    ]
    return sorted(waiting)[: max(0, spare)]


def to_hand_over(wanted: Wanted, gone_names: Collection[str]) -> list[tuple[str, str]]:
    """Return (engine, served name) of what is served under names that are another adapter's by now."""
    return [
        (holding.engine, entry.served_name)
        for holding in wanted.holdings
        for entry in holding.loaded
        if holding.takes_orders and not entry.draining and entry.served_name in gone_names
    ]


def to_retire(
    wanted: Wanted, *, lost_name: bool = False, kept_names: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return (engine, served name) of what is no longer wanted.

    Old served names go once the engine serves the new one; engines that left the plan let go
    once all engines of the plan serve (make before break); where more important adapters got
    its place, also when the plan has no other for it. An engine that is drained keeps the wanted
    revision: what was routed to it a moment ago is still answered. Once it is decided what all
    serve, one that left the plan with another revision lets go when the first serves that.
    `lost_name`: the served name is not its own, so that everything goes at once but what is served
    under `kept_names`.
    """
    desired = wanted.desired()
    settled = bool(desired) and ready(wanted) == len(desired)
    moved = wanted.decided is True and ready(wanted) > 0
    gone: set[tuple[str, str]] = set()
    for holding in wanted.holdings:
        if not holding.takes_orders:
            continue
        for entry in holding.loaded:
            if entry.draining:
                continue
            displaced = holding.displaced and not desired
            stays = holding.leaving and serves(wanted, holding)
            surplus = not holding.desired and not stays and (settled or displaced)
            other_name = entry.served_name != wanted.served_name
            renamed = other_name and serves(wanted, holding)
            left = not holding.desired and not serves(wanted, holding)
            overtaken = moved and left and not other_name
            lost = lost_name and entry.served_name not in kept_names
            if surplus or overtaken or renamed or lost:
                gone.add((holding.engine, entry.served_name))
    return sorted(gone)


def to_roll_back(wanted: Wanted) -> list[tuple[str, Loaded]]:
    """Return (engine, served revision) where another one lies loaded that is not to be served.

    One that was refused elsewhere, or given up: it must not occupy a slot. Publishing the served
    revision again makes the engine drop it.
    """
    lost = _is_lost(wanted)
    found = []
    for holding in wanted.desired():
        served = _served(wanted, holding)
        if served is None or not holding.takes_orders:
            continue
        moves = not serves(wanted, holding)
        given_up = not moves and any(
            entry.served_name == wanted.served_name and not entry.published and not entry.draining
            for entry in holding.loaded
        )
        if given_up or (moves and lost and has_loaded(wanted, holding)):
            found.append((holding.engine, served))
    return found


def ready(wanted: Wanted) -> int:
    """Return how many desired engines are known to serve the wanted revision now.

    What an engine without contact served last is no proof.
    """
    return sum(each.takes_orders and serves(wanted, each) for each in wanted.desired())


def _asked(wanted: Wanted) -> list[Holding]:
    """Return the engines that may get something: nothing that one refusal keeps from every name.

    They would load it, and drop it again, with each pass.
    """
    lost = _is_lost(wanted)
    return [holding for holding in wanted.desired() if holding.proved or not lost]


def _is_lost(wanted: Wanted) -> bool:
    """Return whether no name may move to the wanted revision, for an engine refuses it."""
    if wanted.decided is not None:
        return not wanted.decided and any(holding.refused for holding in wanted.desired())
    return not may_publish(wanted) and any(holding.refused for holding in _lacking(wanted))


def _lacking(wanted: Wanted) -> list[Holding]:
    """Return the engines that have yet to load and prove the wanted revision before names move."""
    moving = wave(wanted)
    return [
        holding
        for holding in wanted.desired()
        if not holding.proved
        and not has_loaded(wanted, holding)
        and (holding.engine in moving or not _replaces(wanted, holding))
    ]


def _is_wanted(wanted: Wanted, holding: Holding, entry: Loaded) -> bool:
    """Return whether it is the wanted revision, proved, and here to stay."""
    return (
        bool(holding.digest)
        and entry.digest == holding.digest
        and not (entry.draining or entry.unproved)
        and entry.served_name == wanted.served_name
        and entry.loader in (wanted.loader, STOCK)
    )


def _published_as_wanted(wanted: Wanted, holding: Holding) -> bool:
    return not holding.keeps_others and any(
        _is_wanted(wanted, holding, entry)
        and entry.published
        and (entry.residency == holding.residency or entry.loader == STOCK)
        for entry in holding.loaded
    )


def _served(wanted: Wanted, holding: Holding) -> Loaded | None:
    """Return what the wanted name points at on this engine."""
    named = (entry for entry in holding.loaded if entry.served_name == wanted.served_name)
    return next((entry for entry in named if entry.published), None)


def _replaces(wanted: Wanted, holding: Holding) -> bool:
    """Return whether the wanted revision would take another's name on this engine."""
    return _served(wanted, holding) is not None and not serves(wanted, holding)


def _holds_two(wanted: Wanted, holding: Holding) -> bool:
    return any(entry.draining for entry in holding.loaded) or (
        _replaces(wanted, holding) and has_loaded(wanted, holding)
    )


def _without_any(wanted: Wanted) -> list[Holding]:
    """Return the desired engines that are not known to serve any revision under the wanted name."""
    return [h for h in wanted.desired() if not h.takes_orders or _served(wanted, h) is None]
