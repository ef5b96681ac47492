"""Which loads are refused before anything is noted. Raises, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.errors import EngineRejected, InvalidAdapter, NameTaken, StagingError

from lorafleet_sidecar.desired import RESIDENCIES
from lorafleet_sidecar.served_names import check_served_name

if TYPE_CHECKING:
    from lorafleet_sidecar.desired import Desired, LoadWish
    from lorafleet_sidecar.observed import ObservedEngine
    from lorafleet_sidecar.store import RevisionStore

LOADERS = ("direct", "device")


def check_wish(
    wish: LoadWish, observed: ObservedEngine, desired: Desired, store: RevisionStore
) -> None:
    """Refuse a load that nobody should ask for, or whose name or revision cannot be had.

    Raises InvalidAdapter, NameTaken, StagingError, or EngineRejected for a quarantined revision.
    """
    check_served_name(wish.served_name, observed.base_models)
    if wish.loader not in LOADERS:
        raise InvalidAdapter(f"loader {wish.loader!r} is unknown, expected direct or device")
    if wish.residency not in RESIDENCIES:
        raise InvalidAdapter(
            f"residency {wish.residency!r} is unknown, expected gpu, host, onDemand or none"
        )
    owner = desired.names.get(wish.served_name)
    if owner is not None and owner.adapter not in ("", wish.adapter):
        raise NameTaken(f"served name {wish.served_name} is taken by {owner.adapter}")
    if owner is None and _served_by_strangers(wish.served_name, observed):
        raise NameTaken(
            f"served name {wish.served_name} is taken by an adapter that was loaded into the "
            "engine by someone else"
        )
    if store.find(wish.digest) is None:
        raise StagingError(f"revision {wish.digest} is not staged in this pod: stage it again")
    try:
        refuse_quarantined(wish.digest, desired)
    except EngineRejected as error:
        raise EngineRejected(f"adapter {wish.adapter}: {error}") from None


def refuse_quarantined(digest: str, desired: Desired) -> None:
    """Raise EngineRejected for a revision during whose load the engine died too often."""
    if desired.quarantined(digest):
        deaths = desired.deaths[digest]
        raise EngineRejected(
            f"revision {digest} is quarantined: the engine died {deaths} times while loading it"
        )


def _served_by_strangers(served_name: str, observed: ObservedEngine) -> bool:
    state = observed.state
    if state is None or served_name not in state.served:
        return False
    revision = state.revisions.get(state.served[served_name])
    return revision is None or not revision.digest
