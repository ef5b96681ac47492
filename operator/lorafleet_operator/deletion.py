"""An adapter's way out: unload it wherever it is, and do not wait for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

from lorafleet_operator.observe import first_answers
from lorafleet_operator.orders import unload_request
from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.world import EngineView


@dataclass(frozen=True)
class Waiting:
    """Pods that still have, or may have, the adapter; false when there are none."""

    silent: tuple[str, ...] = ()
    """Engines without contact."""
    busy: tuple[str, ...] = ()
    """Engines on which requests still run."""

    def __bool__(self) -> bool:
        return bool(self.silent or self.busy)

    def __str__(self) -> str:
        said = []
        if self.silent:
            said.append(f"no answer from {', '.join(self.silent[:5])}")
        if self.busy:
            said.append(f"requests still run on {', '.join(self.busy[:5])}")
        return "; ".join(said)

    def overdue(self, adapter: LoRAAdapter, timeout_seconds: float, now: datetime) -> bool:
        """Return whether the deletion has waited long enough.

        Counted from the deletion itself, so that a restart of the operator does not begin anew.
        Running requests have the adapter's drain time on top.
        """
        stamp = adapter.metadata.deletion_timestamp
        if stamp is None:
            return False
        limit = timeout_seconds + (adapter.spec.drain_timeout_seconds if self.busy else 0)
        return (now - datetime.fromisoformat(stamp)).total_seconds() > limit


async def let_go(adapter: LoRAAdapter, fleet: Fleet) -> Waiting:
    """Unload the adapter from every engine that answers; return the engines to wait for.

    An engine whose pod is gone has unloaded it. One that does not answer is waited for if it had
    the adapter when it last spoke, or if it never spoke and the status says that it was chosen.
    """
    await first_answers(fleet, fleet.world.pods.get(adapter.pool_namespace) or ())
    chosen = {entry.pod_name for entry in adapter.status.engines}
    having = fleet.holders.loaded_on(adapter.key) | fleet.holders.staged_on(adapter.key)
    pods = [
        pod
        for pod in fleet.world.pods_anywhere()
        if (pod.uid in having or (pod.name in chosen and pod.namespace == adapter.pool_namespace))
        and fleet.links.get(pod.uid) is not None
    ]
    await asyncio.gather(
        *(_unload(adapter, engine_view(pod, fleet.links), fleet, chosen) for pod in pods)
    )
    views = [engine_view(pod, fleet.links) for pod in pods]
    views = [view for view in views if _may_have(view, adapter.key, chosen)]
    return Waiting(
        silent=tuple(sorted(view.pod.name for view in views if view.problem)),
        busy=tuple(sorted(view.pod.name for view in views if not view.problem)),
    )


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
    try:
        for name in sorted(names):
            await link.client.unload(
                unload_request(
                    adapter.key,
                    name,
                    abort_seconds=adapter.spec.drain_timeout_seconds,
                    drop_staged=True,
                ),
                fleet.settings.load_timeout_seconds,
            )
        if names:
            await link.refresh()
    except LorafleetError:
        # Still in the inventory, so the caller waits and comes again.
        return
