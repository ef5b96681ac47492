"""All that the framework calls: how it logs in, starts and ends, and what its watches bring.

Nothing is decided here. The framework watches, and starts again what breaks; it keeps no object,
writes none and runs no pass. Four traps, each with a test:
- It takes away the finalizer of its settings from objects that no handler of its own needs it for.
  Ours is put on and taken off by the passes, so the framework must believe in another one.
- It builds a copy of each object at each event, to compare it with one in an annotation that
  nobody wrote: `_NoCopies`.
- It starts a task for each object of a list: see cluster/lists.py.
- It ends the operator for an error that a server sends in a watch: see lasting_watches.py.
"""

from __future__ import annotations

import asyncio
import signal
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import kopf
from lorafleet.buffers import give_back_freed
from lorafleet.errors import LorafleetError

from lorafleet_operator import metrics, passes
from lorafleet_operator.api import names
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.lists import listing_responses
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.gate import gated, pool_of_adapter, pool_of_pool
from lorafleet_operator.lasting_watches import RETRY_SECONDS
from lorafleet_operator.probes import Probes
from lorafleet_operator.push.server import PushServer
from lorafleet_operator.rounds import Rounds
from lorafleet_operator.tenure import Tenure
from lorafleet_operator.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_operator.settings import OperatorSettings

ADAPTERS: Final = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)
POOLS: Final = (names.GROUP, names.VERSION, names.POOL_PLURAL)
GRANTS: Final = (names.GROUP, names.VERSION, names.GRANT_PLURAL)
PODS: Final = ("", "v1", "pods")
NAMESPACES: Final = ("", "v1", "namespaces")
NODES: Final = ("", "v1", "nodes")
SERVICES: Final = ("", "v1", "services")
SLICES: Final = ("discovery.k8s.io", "v1", "endpointslices")
_ADAPTER_GATHER_SECONDS: Final = 0.2
"""An engine that goes is told of by its connection and by its pod, an order by each engine."""
_POOL_GATHER_SECONDS: Final = 1.0
"""The figures in a pool's status change with every load: this bounds how often they are written."""
_TIDY_SECONDS: Final = 10.0
"""Pause between two times of giving freed memory back, which takes some ten milliseconds each."""
_IDLE_SECONDS: Final = 0.5
"""How long the framework keeps a task for an object that an event was about, for the next one."""
_CONNECT_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 60.0
"""How long a connection and a page of a list may take: minutes by default, in which a server that went
without a word is waited for in vain."""
_PAGE: Final = 500
"""Objects of a list that are read at a time: as many are in memory as Python objects."""


class _ForEver:
    """Pauses without an end: the framework gives up, and ends the operator, with the last one.

    And it doubles them: after an outage of an hour the operator would look again after minutes,
    and act by what was true before, for its leases come back at once.
    """

    def __iter__(self) -> Iterator[float]:
        return chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))


class Shared(kopf.Memo):
    """What all handlers share: one, where the framework would make a copy for each object."""

    def __copy__(self) -> Shared:
        return self


class _NoCopies(kopf.DiffBaseStorage):
    """What the framework remembers of objects to find differences by: nothing, it handles none."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


@kopf.on.login()
async def log_in(memo: kopf.Memo, **given: Any) -> kopf.AiohttpSession | None:
    """Log in as the framework would, but take lists in whole."""
    info = kopf.login_via_client(**given)
    if info is None:
        return None
    kinds = (ADAPTERS, POOLS, GRANTS, PODS, SERVICES, SLICES, NAMESPACES, NODES)
    plurals = {plural for _, _, plural in kinds}
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        expiration=info.expiration,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            response_class=listing_responses(plurals, memo.watched.listed),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
        ),
    )


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Set the framework up, connect to the API server, serve /healthz and /metrics."""
    asyncio.get_running_loop().call_soon(_heed_signals, memo.stopping)
    ours: OperatorSettings = memo.settings
    configure(settings, pod_selector=ours.pod_selector, namespaces=ours.namespaces)
    metrics.ADAPTERS.limit = ours.metrics_adapters
    watched = Watched(ours.namespaces)
    fleet = Fleet(ours, watched.world, await reads.connect())
    try:
        memo.probes = await Probes.start(fleet)
    except OSError as error:
        await fleet.close()
        line = f"cannot listen on {ours.listen}: {error.strerror or error}"
        raise kopf.TemporaryError(line, delay=10) from None
    memo.adapters = Rounds(
        gated(passes.adapter_pass, pool_of_adapter, fleet),
        wakeups=fleet.wakeups,
        settings=ours,
        gather=_ADAPTER_GATHER_SECONDS,
        kind=names.ADAPTER_KIND,
    )
    memo.pools = Rounds(
        gated(passes.pool_round, pool_of_pool, fleet),
        wakeups=fleet.wakeups,
        settings=ours,
        gather=_POOL_GATHER_SECONDS,
        kind=names.POOL_KIND,
    )
    watched.serve(fleet, adapters=memo.adapters, pools=memo.pools)
    fleet.tenure = Tenure.of(ours, fleet.shards_changed)
    if fleet.tenure is not None:
        fleet.tenure.start()
    memo.watched, memo.fleet = watched, fleet
    memo.pushes = await _take_pushes(fleet, watched)
    memo.tidying = asyncio.create_task(_tidy(), name="tidying")


def _heed_signals(stopping: asyncio.Event) -> None:
    """End at the first signal, and let those after it change nothing: the framework's own handlers,
    which are in place since a moment ago, fail at the second one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _take_pushes(fleet: Fleet, watched: Watched) -> PushServer | None:
    if not fleet.settings.push_listen:
        return None
    try:
        server = PushServer(fleet, lambda: watched.complete)
        await server.start()
    except (OSError, RuntimeError, LorafleetError) as error:
        raise kopf.PermanentError(f"cannot take pushes: {error}") from None
    return server


async def _tidy() -> None:
    """Give back what the start and each rush of passes has left in the heap."""
    while True:
        give_back_freed()
        await asyncio.sleep(_TIDY_SECONDS)


def configure(
    settings: kopf.OperatorSettings, *, pod_selector: str, namespaces: tuple[str, ...]
) -> None:
    """Set what the framework does on its own: nothing but watching."""
    settings.persistence.finalizer = f"{names.ANNOTATION_PREFIX}/not-used"
    settings.persistence.diffbase_storage = _NoCopies()
    settings.posting.enabled = False  # our Events say more
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.watching.chunk_size = _PAGE
    settings.networking.error_backoffs = _ForEver()
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.networking.request_timeout = _LIST_SECONDS
    if pod_selector:
        settings.watching.label_selectors[PODS] = pod_selector
    settings.watching.field_selectors[NODES] = "spec.unschedulable=true"
    for ours in (SERVICES, SLICES):
        settings.watching.label_selectors[ours] = names.LABEL_ROUTES_TO
    settings.scanning.disabled = bool(namespaces)  # a Role cannot list CRDs or namespaces


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Cut off the passes, give up the leases and close what `start` opened. The fleet stays as it is."""
    memo.tidying.cancel()
    if memo.pushes is not None:
        await memo.pushes.stop()
    await memo.adapters.close()
    await memo.pools.close()
    if memo.fleet.tenure is not None:
        await memo.fleet.tenure.close()
    await memo.probes.stop()
    await memo.fleet.close()


@kopf.on.event(*SERVICES)
@kopf.on.event(*SLICES)
@kopf.on.event(*PODS)
@kopf.on.event(*POOLS)
@kopf.on.event(*GRANTS)
@kopf.on.event(*ADAPTERS)
async def changed(resource: kopf.Resource, event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Follow what is watched. A coroutine: the framework runs other handlers in threads."""
    gone = event["type"] == "DELETED"
    memo.watched.heard(resource.plural, event["object"], gone=gone)


def watch_the_cluster() -> None:
    """Follow also what is in no namespace: namespaces, whose labels tell tenants and to whom names
    belong, and which nodes are cordoned."""
    kopf.on.event(*NAMESPACES)(changed)
    kopf.on.event(*NODES)(changed)
