"""An adapter's way out: unload it wherever it is, and do not wait for ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

from lorafleet_operator.observe import first_answers
from lorafleet_operator.orders import unload_request
from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.world import EngineView


async def let_go(adapter: LoRAAdapter, fleet: Fleet) -> list[str]:
    """Unload the adapter from every engine that answers; return the pods still to wait for.

    An engine whose pod is gone has unloaded it. One that does not answer is waited for if it had
    the adapter when it last spoke, or if it never spoke and the status says that it was chosen.
    """
    namespace = adapter.metadata.namespace
    pods = [pod for pod in fleet.world.pods.get(namespace) or () if fleet.links.get(pod.uid)]
    await first_answers(fleet, {pod.uid for pod in pods})
    chosen = {entry.pod_name for entry in adapter.status.engines}
    await asyncio.gather(
        *(_unload(adapter, engine_view(pod, fleet.links), fleet, chosen) for pod in pods)
    )
    views = [engine_view(pod, fleet.links) for pod in pods]
    return sorted(view.pod.name for view in views if _may_have(view, adapter.key, chosen))


def overdue(adapter: LoRAAdapter, timeout_seconds: float, now: datetime | None = None) -> bool:
    """Return whether the deletion has waited long enough for engines that do not answer."""
    stamp = adapter.metadata.deletion_timestamp
    if stamp is None:
        return False
    since = datetime.fromisoformat(stamp)
    return ((now or datetime.now(UTC)) - since).total_seconds() > timeout_seconds


def _may_have(view: EngineView, adapter: str, chosen: set[str]) -> bool:
    if view.inventory is None:
        return view.pod.name in chosen
    return bool(view.loaded(adapter))


async def _unload(adapter: LoRAAdapter, view: EngineView, fleet: Fleet, chosen: set[str]) -> None:
    link = fleet.links.get(view.uid)
    if link is None or view.problem or view.inventory is None:
        return
    names = {entry.served_name for entry in view.loaded(adapter.key)}
    # Asked also where nothing is loaded: what is staged is freed, and a sidecar whose vLLM is
    # restarting must not load the adapter again.
    if view.pod.name in chosen or any(e.adapter == adapter.key for e in view.inventory.staged):
        names.add(adapter.served_name)
    drain = adapter.spec.drain_timeout_seconds
    try:
        for name in sorted(names):
            await link.client.unload(
                unload_request(adapter.key, name, drain, drop_staged=True),
                drain + fleet.settings.load_timeout_seconds,
            )
        if names:
            await link.refresh()
    except LorafleetError:
        # Still in the inventory, so the caller waits and comes again.
        return
