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

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import kopf

from lorafleet_operator import loops, passes
from lorafleet_operator.api import names
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.lean import LeanResponse, drop_authorship
from lorafleet_operator.cluster.reads import EnginePod, engine_pod
from lorafleet_operator.fleet import Fleet, pool_loop
from lorafleet_operator.probes import Probes
from lorafleet_operator.world import KnownAdapter, World

if TYPE_CHECKING:
    from lorafleet_operator.settings import OperatorSettings

ADAPTERS: Final = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)
POOLS: Final = (names.GROUP, names.VERSION, names.POOL_PLURAL)
PODS: Final = ("", "v1", "pods")
SERVICES: Final = ("", "v1", "services")
SLICES: Final = ("discovery.k8s.io", "v1", "endpointslices")
_REQUESTS: Final = 16
"""Requests of the framework at a time; it waits in a queue for the others."""
_ADAPTER_GATHER_SECONDS: Final = 0.2
"""An engine that goes is told of by its connection and by its pod, an order by each engine."""
_POOL_GATHER_SECONDS: Final = 1.0
"""The figures in a pool's status change with every load: this bounds how often they are written."""


@kopf.on.login()
async def log_in(**given: Any) -> kopf.AiohttpSession | None:
    """Log in as the framework would, but let it have few requests at a time.

    It gives each new object its finalizer at once, with a connection for each: thousands of them
    after a start in a fleet of thousands of new adapters.
    """
    info = kopf.login_via_client(**given)
    if info is None:
        return None
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        expiration=info.expiration,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            response_class=LeanResponse,
            middlewares=(_few_at_a_time(asyncio.Semaphore(_REQUESTS)),),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
        ),
    )


def _few_at_a_time(limit: asyncio.Semaphore) -> aiohttp.ClientMiddlewareType:
    """Return what lets requests wait for `limit`; watches, which last, need no turn."""

    async def wait(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:
            return await handler(request)
        async with limit:
            return await handler(request)

    return wait


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **indices: Any) -> None:
    """Set the framework up, connect to the API server, serve /healthz and /metrics."""
    ours: OperatorSettings = memo.settings
    configure(settings, pod_selector=ours.pod_selector, namespaces=ours.namespaces)
    wanted = ("engine_pods", "pools", "adapters", "existing", "living")
    world = World(*(indices[name] for name in wanted))
    memo.fleet = Fleet(ours, world, await reads.connect())
    try:
        memo.probes = await Probes.start(memo.fleet)
    except OSError as error:
        await memo.fleet.close()
        line = f"cannot listen on {ours.listen}: {error.strerror or error}"
        raise kopf.TemporaryError(line, delay=10) from None


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
    settings.networking.request_timeout = 120.0  # the wait for a turn counts
    if pod_selector:
        settings.watching.label_selectors[PODS] = pod_selector
    for ours in (SERVICES, SLICES):
        settings.watching.label_selectors[ours] = names.LABEL_ROUTES_TO
    settings.scanning.disabled = bool(namespaces)  # a Role cannot list CRDs or namespaces


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Close what `start` opened. The fleet stays as it is."""
    await memo.probes.stop()
    await memo.fleet.close()


# Index handlers are coroutines though they wait for nothing: the framework runs others in threads.


@kopf.index(*PODS)
async def engine_pods(body: kopf.Body, memo: kopf.Memo, **_: Any) -> dict[str, EnginePod]:
    """Index pods by namespace."""
    pod = engine_pod(body)
    memo.fleet.pods[pod.uid] = pod
    return {pod.namespace: pod}


@kopf.index(*POOLS)
async def pools(body: kopf.Body, **_: Any) -> dict[str, EnginePool]:
    """Index pools by namespace."""
    pool = EnginePool.model_validate(dict(body))
    return {pool.metadata.namespace: pool}


@kopf.index(*ADAPTERS)
async def adapters(body: kopf.Body, **_: Any) -> dict[str, KnownAdapter]:
    """Index adapters by their pool, without what only their own pass reads."""
    known = _known(body)
    return {known.pool: known}


@kopf.index(*ADAPTERS)
async def existing(body: kopf.Body, **_: Any) -> dict[str, str]:
    """Index what exists, readable or not: whatever else an engine serves is an orphan."""
    return {str(body.metadata.namespace): _key(body)}


@kopf.index(*ADAPTERS)
@kopf.index(*POOLS)
async def living(body: kopf.Body, **_: Any) -> dict[str, str]:
    """Index what exists by UID."""
    return {str(body.metadata.uid): _key(body)}


@kopf.index(*SERVICES)
@kopf.index(*SLICES)
async def routes(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    """Know what leads requests to engines before the first pass; nothing is indexed."""
    route_changed(memo.fleet, body, gone=False)


@kopf.on.event(*SERVICES)
@kopf.on.event(*SLICES)
async def route_gone(body: kopf.Body, event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Follow deletions, of which no index is told."""
    if event["type"] == "DELETED":
        route_changed(memo.fleet, body, gone=True)


def route_changed(fleet: Fleet, body: kopf.Body, *, gone: bool) -> None:
    """Put right what others have changed or deleted."""
    owned = fleet.router.owned
    if owned.note(str(body["kind"]), dict(body), gone=gone):
        kind, key = owned.owner_of(dict(body))
        if kind == names.POOL_KIND:
            fleet.wakeups.wake(pool_loop(key))
        else:
            fleet.router.concerns([key])


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
    drop_authorship(event["object"])
    if fleet.seen.changed(body):
        fleet.wakeups.wake(_key(body), news=True)
    gone = event["type"] == "DELETED"
    if gone:
        fleet.seen.forget(str(body.metadata.uid))
    if gone or event["type"] == "ADDED" or body.metadata.get("deletionTimestamp"):
        fleet.adapter_came_or_went(_known(body), gone=gone)


@kopf.daemon(*ADAPTERS)
async def adapter_daemon(
    body: kopf.Body, stopped: kopf.DaemonStopped, memo: kopf.Memo, **_: Any
) -> None:
    """Keep one adapter as its manifest wants it; unload it when, and only when, it is deleted."""
    fleet: Fleet = memo.fleet
    fleet.open_links()
    key, gone = _key(body), partial(fleet.world.gone, str(body.metadata.uid))
    await loops.keep(
        key,
        partial(passes.adapter_pass, body, fleet),
        wakeups=fleet.wakeups,
        settings=fleet.settings,
        stopped=loops.StoppedOr(stopped, gone),
        interval=partial(passes.adapter_interval, body, fleet),
        gather=_ADAPTER_GATHER_SECONDS,
    )
    if deleted(stopped) or gone():
        await loops.insist(key, partial(passes.delete_adapter, body, fleet))


@kopf.daemon(*POOLS)
async def pool_daemon(
    body: kopf.Body, stopped: kopf.DaemonStopped, memo: kopf.Memo, **_: Any
) -> None:
    """Keep one pool's status, and its engines free of adapters that nobody owns."""
    fleet: Fleet = memo.fleet
    fleet.open_links()
    await loops.keep(
        pool_loop(_key(body)),
        partial(passes.pool_pass, body, fleet),
        wakeups=fleet.wakeups,
        settings=fleet.settings,
        stopped=loops.StoppedOr(stopped, partial(fleet.world.gone, str(body.metadata.uid))),
        interval=lambda: fleet.settings.resync_seconds,
        gather=_POOL_GATHER_SECONDS,
    )


def deleted(stopped: kopf.DaemonStopped) -> bool:
    """Return whether a daemon was stopped because its object is deleted."""
    reason = stopped.reason
    return reason is not None and kopf.DaemonStoppingReason.RESOURCE_DELETED in reason


def _known(body: kopf.Body) -> KnownAdapter:
    status = {key: value for key, value in body.status.items() if key != "conditions"}
    adapter = LoRAAdapter.model_validate({**body, "status": status})
    return KnownAdapter.of(adapter, body["metadata"]["creationTimestamp"])


def _key(body: kopf.Body) -> str:
    return f"{body.metadata.namespace}/{body.metadata.name}"
