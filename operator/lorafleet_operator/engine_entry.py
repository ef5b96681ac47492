"""One engine's line in an adapter's status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.api.v1alpha1 import AdapterEngine, Tier

if TYPE_CHECKING:
    from datetime import datetime

    from lorafleet.errors import LorafleetError

    from lorafleet_operator.world import EngineView

_TIERS: Final = {
    pb.TIER_GPU: Tier.GPU,
    pb.TIER_HOST: Tier.HOST,
    pb.TIER_STAGED: Tier.STAGED,
    pb.TIER_SOURCE: Tier.SOURCE,
}


def engine_entry(
    view: EngineView,
    adapter: str,
    fingerprint: str,
    error: LorafleetError | None,
    before: AdapterEngine | None,
    now: datetime,
) -> AdapterEngine:
    """Return what `view` says of the adapter, with the transition time of `before` if it is same.

    The published revision comes first, then one that is only loaded, then the staged one.
    Without contact nothing is known to be published.
    """
    loaded = view.loaded(adapter)
    digest = view.digest_of(fingerprint)
    shown = next((e for e in loaded if e.published), None) or next(iter(loaded), None)
    message = str(error) if error else "" if view.takes_orders else view.message
    entry = AdapterEngine(
        pod_name=view.pod.name,
        engine=view.instance[-128:],
        digest=shown.digest if shown else digest,
        tier=_tier(shown, digest),
        published=bool(shown and shown.published and view.takes_orders),
        in_flight=sum(each.in_flight for each in loaded),
        message=message,
    )
    same = before is not None and (before.digest, before.tier, before.published) == (
        entry.digest,
        entry.tier,
        entry.published,
    )
    changed = before.last_transition_time if same and before else None
    return entry.model_copy(update={"last_transition_time": changed or now.replace(microsecond=0)})


def _tier(shown: pb.LoadedAdapter | None, digest: str) -> Tier:
    if shown is not None:
        return _TIERS.get(shown.tier, Tier.HOST)
    return Tier.STAGED if digest else Tier.SOURCE
