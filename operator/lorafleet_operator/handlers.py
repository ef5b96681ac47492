"""All that the framework calls: what is indexed, what wakes, and one loop for each object.

Nothing is decided here. Five traps of the framework, each with a test:
- `stopped` is set on deletion and also when the operator exits or pauses: only RESOURCE_DELETED
  unloads. Otherwise each restart of the operator would empty the fleet.
- No cancellation_timeout: with it the finalizer goes although the unload has not finished.
- A daemon that returns is never started again, so the loops let no error out.
- An object that goes before it has its finalizer, or after a person took that away, stops no
  daemon, and a batch of events that ends with its deletion even starts one: loops look into
  `living`. Else such a loop would serve a deleted adapter for ever, against its own namesake.
- An object that is already being deleted when the operator starts gets no daemon and loses its
  finalizer at once: its leftovers on the engines are orphans, which the pool's loop unloads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kopf

from lorafleet_operator import loops, passes
from lorafleet_operator.api import names
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.reads import EnginePod, engine_pod
from lorafleet_operator.fleet import Fleet, pool_loop
from lorafleet_operator.probes import Probes
from lorafleet_operator.world import KnownAdapter, World

if TYPE_CHECKING:
    from lorafleet_operator.settings import OperatorSettings

ADAPTERS: Final = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)
POOLS: Final = (names.GROUP, names.VERSION, names.POOL_PLURAL)
PODS: Final = ("", "v1", "pods")
_ADAPTER_PAUSE_SECONDS: Final = 0.2
"""After a pass: what several engines have to say of one order is worth one more pass, not several."""
_POOL_PAUSE_SECONDS: Final = 1.0
"""After a pass: the figures in a pool's status change with every load, and are written this often."""


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **indices: Any) -> None:
    """Set the framework up, connect to the API server, serve /healthz and /metrics."""
    ours: OperatorSettings = memo.settings
    configure(settings, pod_selector=ours.pod_selector, namespaces=ours.namespaces)
    wanted = ("engine_pods", "pools", "adapters", "existing", "living")
    world = World(*(indices[name] for name in wanted))
    memo.fleet = Fleet(ours, world, await reads.connect())
    memo.probes = await Probes.start(memo.fleet)


def configure(
    settings: kopf.OperatorSettings, *, pod_selector: str, namespaces: tuple[str, ...]
) -> None:
    """Set what the framework does on its own."""
    settings.persistence.finalizer = names.FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix=names.ANNOTATION_PREFIX
    )
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=names.ANNOTATION_PREFIX
    )
    settings.posting.enabled = False  # our Events say more
    settings.background.instant_exit_timeout = 1.0  # loops cut off their pass when stopped
    settings.background.cancellation_polling = 2.0  # an unload that took longer is seen this soon
    settings.networking.request_timeout = 30.0
    if pod_selector:
        settings.watching.label_selectors[PODS] = pod_selector
    settings.scanning.disabled = bool(namespaces)  # a Role cannot list CRDs or namespaces


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Close what `start` opened. The fleet stays as it is."""
    await memo.probes.stop()
    await memo.fleet.close()


@kopf.index(*PODS)
def engine_pods(body: kopf.Body, **_: Any) -> dict[str, EnginePod]:
    """Index pods by namespace."""
    pod = engine_pod(body)
    return {pod.namespace: pod}


@kopf.index(*POOLS)
def pools(body: kopf.Body, **_: Any) -> dict[str, EnginePool]:
    """Index pools by namespace."""
    pool = EnginePool.model_validate(dict(body))
    return {pool.metadata.namespace: pool}


@kopf.index(*ADAPTERS)
def adapters(body: kopf.Body, **_: Any) -> dict[str, KnownAdapter]:
    """Index adapters by their pool."""
    adapter = LoRAAdapter.model_validate(dict(body))
    pool = f"{adapter.metadata.namespace}/{adapter.spec.pool_ref.name}"
    return {pool: KnownAdapter(adapter, body["metadata"]["creationTimestamp"])}


@kopf.index(*ADAPTERS)
def existing(body: kopf.Body, **_: Any) -> dict[str, str]:
    """Index what exists, readable or not: whatever else an engine serves is an orphan."""
    return {str(body.metadata.namespace): _key(body)}


@kopf.index(*ADAPTERS)
@kopf.index(*POOLS)
def living(body: kopf.Body, **_: Any) -> dict[str, str]:
    """Index what exists by UID."""
    return {str(body.metadata.uid): _key(body)}


@kopf.on.event(*PODS)
async def pod_changed(body: kopf.Body, event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Follow pods: connections to new ones, and passes for whom they concern."""
    fleet: Fleet = memo.fleet
    fleet.alive()
    fleet.pod_changed(engine_pod(body), gone=event["type"] == "DELETED")


@kopf.on.event(*POOLS)
async def pool_changed(body: kopf.Body, event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Follow pools: their selectors and ports decide who is connected to.

    A status that a pass has just written concerns no adapter.
    """
    fleet: Fleet = memo.fleet
    fleet.alive()
    gone = event["type"] == "DELETED"
    if fleet.seen.changed(body) or gone:
        fleet.sync_links()
        fleet.wake_pool(_key(body))
    if gone:
        fleet.seen.forget(str(body.metadata.uid))


@kopf.on.event(*ADAPTERS)
async def adapter_changed(body: kopf.Body, event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Wake the adapter; when one comes or goes, also its pool and whoever shares its name.

    What a pass has just written of it is no reason for another.
    """
    fleet: Fleet = memo.fleet
    fleet.alive()
    if fleet.seen.changed(body):
        fleet.wakeups.wake(_key(body), news=True)
    if event["type"] == "DELETED":
        fleet.seen.forget(str(body.metadata.uid))
    gone = event["type"] == "DELETED"
    if gone or event["type"] == "ADDED" or body.metadata.get("deletionTimestamp"):
        adapter = LoRAAdapter.model_validate(dict(body))
        known = KnownAdapter(adapter, body["metadata"]["creationTimestamp"])
        fleet.adapter_came_or_went(known, gone=gone)


@kopf.daemon(*ADAPTERS)
async def adapter_daemon(
    body: kopf.Body, stopped: kopf.DaemonStopped, memo: kopf.Memo, **_: Any
) -> None:
    """Keep one adapter as its manifest wants it; unload it when, and only when, it is deleted."""
    fleet: Fleet = memo.fleet
    key, gone = _key(body), partial(fleet.world.gone, str(body.metadata.uid))
    await loops.keep(
        key,
        partial(passes.adapter_pass, body, fleet),
        wakeups=fleet.wakeups,
        settings=fleet.settings,
        stopped=loops.StoppedOr(stopped, gone),
        interval=partial(passes.adapter_interval, body, fleet),
        pause=_ADAPTER_PAUSE_SECONDS,
    )
    if deleted(stopped) or gone():
        await loops.insist(key, partial(passes.delete_adapter, body, fleet))


@kopf.daemon(*POOLS)
async def pool_daemon(
    body: kopf.Body, stopped: kopf.DaemonStopped, memo: kopf.Memo, **_: Any
) -> None:
    """Keep one pool's status, and its engines free of adapters that nobody owns."""
    fleet: Fleet = memo.fleet
    await loops.keep(
        pool_loop(_key(body)),
        partial(passes.pool_pass, body, fleet),
        wakeups=fleet.wakeups,
        settings=fleet.settings,
        stopped=loops.StoppedOr(stopped, partial(fleet.world.gone, str(body.metadata.uid))),
        interval=lambda: fleet.settings.resync_seconds,
        pause=_POOL_PAUSE_SECONDS,
    )


def deleted(stopped: kopf.DaemonStopped) -> bool:
    """Return whether a daemon was stopped because its object is deleted."""
    reason = stopped.reason
    return reason is not None and kopf.DaemonStoppingReason.RESOURCE_DELETED in reason


def _key(body: kopf.Body) -> str:
    return f"{body.metadata.namespace}/{body.metadata.name}"
