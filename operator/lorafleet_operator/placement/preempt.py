"""Whose place a more important adapter may take: the least important, and as few as will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .capacity import shortage

if TYPE_CHECKING:
    from collections.abc import Collection

    from .board import Board, Carrier, Kind
    from .demands import AdapterDemand


def cheapest(
    board: Board, adapter: AdapterDemand, kinds: set[Kind], chosen: Collection[str]
) -> tuple[Carrier, list[AdapterDemand]] | None:
    """Return the engine where the least is lost, with who has to go; None if nobody may.

    Least: the lowest priorities, then the fewest adapters, then the fewest bytes.
    """
    found = None
    for name, carrier in board.carriers.items():
        if name in chosen or name in adapter.refused or carrier.kind not in kinds:
            continue
        going = victims(carrier, adapter)
        if going is None:
            continue
        size = sum(victim.size_bytes or 0 for victim in going)
        cost = (max((v.weight for v in going), default=(False, 0)), len(going), size, name)
        if found is None or cost < found[0]:
            found = cost, carrier, going
    return found and found[1:]


def victims(carrier: Carrier, adapter: AdapterDemand) -> list[AdapterDemand] | None:
    """Return who has to leave this engine for `adapter`; None if that would not be enough.

    Only adapters of lower weight that keep no place of their own, and for what is within its
    tenant's guarantee any of other tenants; never one within a guarantee. What a request asks for
    takes the place of what requests asked for before, the longest idle first. A quota that is
    used up takes nobody's place. Where victims lie in the arena is not known: it is taken that
    their extents and the largest free piece are neighbours.
    """
    shares = carrier.shares and carrier.shares.copy()
    if carrier.over_quota(adapter) is not None:
        return None
    claims = shares is not None and shares.within(adapter)
    idle = carrier.engine.idle_seconds
    lower = sorted(
        (
            other
            for other in carrier.adapters.values()
            if (not other.reserved and _gives_way(other, adapter, carrier))
            or (claims and other.tenant != adapter.tenant)
        ),
        key=lambda other: (
            other.reserved,
            other.weight,
            -idle.get(other.key, 0) if other.on_demand else 0,
            -(other.size_bytes or 0),
            other.key,
        ),
    )
    load = carrier.load.copy()
    piece = carrier.engine.largest_piece_bytes
    going: list[AdapterDemand] = []

    def move(other: AdapterDemand, times: int) -> None:
        nonlocal piece
        load.add(other, times)
        if shares is not None:
            shares.add(other, times)
        if other.key in carrier.engine.loaded:  # who was only chosen has no extent to leave
            piece -= times * (other.size_bytes or 0)

    def fits() -> bool:
        room = shortage(adapter, carrier.engine, load, shares, held=True) is None
        return room and (adapter.size_bytes or 0) <= piece

    for other in lower:
        if shares is not None and shares.guards(other):
            continue
        move(other, -1)
        going.append(other)
        if fits():
            break
    else:
        return None
    for other in going[::-1]:  # a large one may have made the small ones before it unnecessary
        move(other, 1)
        if fits():
            going.remove(other)
        else:
            move(other, -1)
    return going


def _gives_way(other: AdapterDemand, adapter: AdapterDemand, carrier: Carrier) -> bool:
    if other.weight < adapter.weight:
        return True
    waits = carrier.engine.pod_name in other.requested
    return adapter.on_demand and other.on_demand and other.weight == adapter.weight and not waits
