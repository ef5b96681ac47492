"""What has to be done next for one adapter: pure decisions from gathered facts.

A revision goes out in two phases. First every engine that should have it stages and loads it
beside whatever it serves; then the served name moves on each. While another revision is served
anywhere and an engine has not loaded the new one, no name moves: a refusal leaves the old
revision everywhere. Once the new one is published somewhere the others may follow one by one,
for then it has proved itself and an engine that restarted must not wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


STOCK: Final = "stock"
"""The loader of an engine without the plugin, which has no other."""


@dataclass(frozen=True)
class Loaded:
    """One revision that an engine has loaded for the adapter."""

    digest: str
    served_name: str
    loader: str = "direct"
    published: bool = False
    pinned: bool = False
    draining: bool = False
    """Whether the sidecar only waits for running requests before it unloads it."""


@dataclass(frozen=True)
class Holding:
    """What one engine has of the adapter, and whether it can be asked for anything."""

    engine: str
    desired: bool = True
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


@dataclass(frozen=True)
class Wanted:
    """How the adapter should be served."""

    served_name: str
    loader: str = "direct"
    pinned: bool = False
    holdings: tuple[Holding, ...] = field(default=())

    def desired(self) -> list[Holding]:
        """Return the holdings of the engines that should serve the adapter."""
        return [holding for holding in self.holdings if holding.desired]


def has_loaded(wanted: Wanted, holding: Holding) -> bool:
    """Return whether the engine has the wanted revision loaded as wanted."""
    return any(_is_wanted(wanted, holding, entry) for entry in holding.loaded)


def serves(wanted: Wanted, holding: Holding) -> bool:
    """Return whether the wanted name points at the wanted revision on this engine."""
    return any(_is_wanted(wanted, holding, each) and each.published for each in holding.loaded)


def to_stage(wanted: Wanted) -> list[str]:
    """Return the engines that the wanted revision has to be sent to.

    An engine whose vLLM is restarting is sent it too: its sidecar takes it meanwhile.
    """
    return [
        holding.engine for holding in wanted.desired() if not holding.digest and not holding.refused
    ]


def to_load(wanted: Wanted) -> list[str]:
    """Return the engines that have to load the wanted revision beside what they serve."""
    return [
        holding.engine
        for holding in wanted.desired()
        if holding.digest
        and holding.takes_orders
        and not holding.refused
        and not has_loaded(wanted, holding)
    ]


def may_publish(wanted: Wanted) -> bool:
    """Return whether served names may move to the wanted revision now."""
    if any(serves(wanted, holding) for holding in wanted.holdings):
        return True
    replaces = any(
        entry.published and entry.served_name == wanted.served_name
        for holding in wanted.holdings
        for entry in holding.loaded
    )
    return not replaces or all(has_loaded(wanted, holding) for holding in wanted.desired())


def to_publish(wanted: Wanted) -> list[str]:
    """Return the engines on which the served name (or the pin) has to be moved."""
    if not may_publish(wanted):
        return []
    return [
        holding.engine
        for holding in wanted.desired()
        if holding.takes_orders
        and has_loaded(wanted, holding)
        and not _published_as_wanted(wanted, holding)
    ]


def to_retire(wanted: Wanted, *, lost_name: bool = False) -> list[tuple[str, str]]:
    """Return (engine, served name) of what is no longer wanted.

    Old served names go once the engine serves the new one; engines that left the plan let go
    once all engines of the plan serve (make before break); where more important adapters got
    its place, also when the plan has no other for it. An engine that is drained keeps the wanted
    revision: what was routed to it a moment ago is still answered. `lost_name`: an older adapter owns the
    served name, so that everything goes at once.
    """
    desired = wanted.desired()
    settled = bool(desired) and ready(wanted) == len(desired)
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
            renamed = entry.served_name != wanted.served_name and serves(wanted, holding)
            if surplus or renamed or lost_name:
                gone.add((holding.engine, entry.served_name))
    return sorted(gone)


def to_roll_back(wanted: Wanted) -> list[tuple[str, Loaded]]:
    """Return (engine, served revision) where a revision that was refused elsewhere lies loaded.

    Publishing the served revision again makes the engine drop the other one: a refused update
    must not occupy a slot.
    """
    if may_publish(wanted) or not any(holding.refused for holding in wanted.desired()):
        return []
    found = []
    for holding in wanted.desired():
        served = next((entry for entry in holding.loaded if entry.published), None)
        if served is not None and holding.takes_orders and has_loaded(wanted, holding):
            found.append((holding.engine, served))
    return found


def ready(wanted: Wanted) -> int:
    """Return how many desired engines are known to serve the wanted revision now.

    What an engine without contact served last is no proof.
    """
    return sum(each.takes_orders and serves(wanted, each) for each in wanted.desired())


def common_digest(holdings: Iterable[Holding]) -> str:
    """Return the digest that most engines know the wanted revision by, "" if none does.

    Engines of one dtype agree; a pool of two dtypes has two digests for one source.
    """
    found: Sequence[str] = [holding.digest for holding in holdings if holding.digest]
    return max(sorted(set(found)), key=found.count, default="")


def _is_wanted(wanted: Wanted, holding: Holding, entry: Loaded) -> bool:
    return (
        bool(holding.digest)
        and entry.digest == holding.digest
        and entry.served_name == wanted.served_name
        and entry.loader in (wanted.loader, STOCK)
    )


def _published_as_wanted(wanted: Wanted, holding: Holding) -> bool:
    return any(
        _is_wanted(wanted, holding, entry) and entry.published and entry.pinned == wanted.pinned
        for entry in holding.loaded
    )
