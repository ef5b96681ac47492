"""The protocol of protos/lorafleet/v1alpha1/push.proto, served to trainers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import (
    EngineUnreachable,
    InvalidAdapter,
    SourceNotFound,
    StagingFull,
    TransferInterrupted,
)
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc

from lorafleet_operator import metrics
from lorafleet_operator.cluster import pushed_specs
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.push import early, named, safe_point
from lorafleet_operator.push.arriving import Arrival, ArrivingSource
from lorafleet_operator.push.bell import Bell
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.progress import status_of
from lorafleet_operator.push.revision import described
from lorafleet_operator.push.stay import Stay
from lorafleet_operator.push.stream import (
    Pace,
    commit_comes,
    done,
    first,
    more,
    say,
    without_content,
)
from lorafleet_operator.sources.pushed import hex_of
from lorafleet_operator.world import pool_engines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from lorafleet_operator.cluster.reviews import Account
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.push.access import Doorkeeper
    from lorafleet_operator.push.revision import PushedRevision
    from lorafleet_operator.push.spool import Spool
    from lorafleet_operator.push.turns import Turns

_LOG: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.05
_START_LOOKS: Final = 120


@dataclass(frozen=True)
class _Coming:
    """A push whose turn it is."""

    key: str
    revision: PushedRevision
    body: dict[str, Any] | None
    """Of the adapter, None if it is yet to be made."""
    push: Mapping[str, Any]
    """What its spec will say."""
    arrival: Arrival = field(default_factory=Arrival)


class PushService(pb_grpc.PushServiceServicer):
    """Takes revisions, and tells what came of them."""

    def __init__(
        self,
        fleet: Fleet,
        spool: Spool,
        door: Doorkeeper,
        turns: Turns,
        complete: Callable[[], bool],
    ) -> None:
        """`complete`: whether the watches have brought the whole cluster."""
        self._fleet = fleet
        self._spool = spool
        self._door = door
        self._turns = turns
        self._complete = complete
        self._named: dict[str, str] = {}  # as in _wanted, what the watches have not brought yet

    async def Push(self, _requests: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """Take one revision."""
        try:
            who = self._door.caller()
            async with self._turns.place(who.side):
                async with self._turns.manifest(who.side):
                    manifest, revision = await self._described(context)
                await self._take(manifest, revision, who, context)
        except BaseException:
            metrics.PUSHES.labels("failed").inc()
            raise

    async def _described(self, context: Any) -> tuple[pb.PushManifest, PushedRevision]:
        """Return what comes, without its content, and the content as it is described."""
        manifest = await first(context)
        namespace, name = manifest.namespace, manifest.name
        metadata = dict(context.invocation_metadata())
        await self._door.admit(
            metadata, "create", namespace=namespace, name=name, subresource="push"
        )
        revision = await done(
            lambda: described(
                manifest.safetensors_header,
                manifest.adapter_config,
                manifest.tensor_digests,
                adapter=f"{namespace}/{name}",
                settings=self._fleet.source_settings,
            )
        )
        return without_content(manifest), revision

    async def _take(
        self,
        manifest: pb.PushManifest,
        revision: PushedRevision,
        who: Account,
        context: Any,
    ) -> None:
        key = f"{manifest.namespace}/{manifest.name}"
        push = {"revision": revision.revision, "step": manifest.step}
        body = await self._adapter(manifest, who, push)
        coming = _Coming(key, revision, body, push)
        async with self._turns.alone(key, f"a push of step {manifest.step} by {who.user}"):
            try:
                received = await self._bring(coming, context)
                crash_at("push.kept")
                committed = await self._name(manifest, revision, body, push)
                coming.arrival.commit()
                crash_at("push.named")
                self._named[key] = f"{key}/{hex_of(revision.revision)}"
                wanted = self._wanted()
                await done(lambda: self._spool.settle(key, wanted))
            finally:
                coming.arrival.end()
                await done(lambda: self._spool.release(key))
        committed.received_bytes = received
        await say(context, committed=committed)

    async def _adapter(
        self, manifest: pb.PushManifest, who: Account, push: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the adapter that takes the push; None if it is to be made and may be."""
        namespace, name = manifest.namespace, manifest.name
        served = self._fleet.settings.namespaces
        if served and namespace not in served:
            raise InvalidAdapter(f"this operator does not serve namespace {namespace}")
        body = await pushed_specs.read(self._fleet.api, namespace, name)
        spec = named.new_spec(manifest, push) if body is None else body["spec"]
        if body is None:
            await self._door.may_create(who, namespace, name)
            await pushed_specs.create(self._fleet.api, namespace, name, spec, only_ask=True)
        else:
            named.check_agrees(manifest, body)
        await self._cluster_read()
        pool = named.pool_of(spec, namespace)
        if not self._fleet.owns(pool):
            raise EngineUnreachable(f"another replica of the operator acts for pool {pool}")
        return body

    async def _cluster_read(self) -> None:
        """Wait for an operator that has just started: until it has read the cluster it knows neither
        what specs name nor who acts for a pool."""
        for _ in range(_START_LOOKS):
            if self._complete():
                return
            await asyncio.sleep(_LOOK_SECONDS)
        raise EngineUnreachable("the operator has not read the whole cluster yet")

    async def _bring(self, coming: _Coming, context: Any) -> int:
        """Have the revision in the spool; return how many bytes came for that."""
        key, revision = coming.key, coming.revision
        if await done(lambda: self._spool.use_again(key, revision)):
            await say(context, accepted=pb.PushAccepted())
            await commit_comes(context)
            return 0
        incoming = Incoming(self._spool, key, revision)
        try:
            wanted = self._wanted()
            await done(lambda: incoming.open(wanted))
            await say(context, accepted=pb.PushAccepted(missing=incoming.missing, runs_on=True))
            await self._send_on(incoming, coming)
            await self._receive(incoming, context)
            await done(incoming.commit)
            coming.arrival.kept()
        except StagingFull:
            await done(incoming.discard)
            raise
        finally:
            await done(incoming.close)
        return incoming.received_bytes

    async def _send_on(self, incoming: Incoming, coming: _Coming) -> None:
        """Have the adapter's engines, if there are any, be sent what comes."""
        if coming.body is None or not early.is_worth_it(incoming.missing_bytes, self._fleet):
            return
        places = await done(incoming.promised)
        loop = asyncio.get_running_loop()
        incoming.on_count = lambda at: loop.call_soon_threadsafe(coming.arrival.came, at)
        source = ArrivingSource(
            self._spool.folder(coming.key),
            coming.revision,
            places,
            coming.arrival,
            metrics.SOURCE_READ_BYTES.labels(ArrivingSource.kind).inc,
        )
        early.begin(coming.body, coming.push, source, coming.arrival, self._fleet)

    async def _receive(self, incoming: Incoming, context: Any) -> None:
        try:
            await self._messages(incoming, context)
        except TransferInterrupted:
            await done(incoming.settle)  # a wrong tensor that came before says more
            raise

    async def _messages(self, incoming: Incoming, context: Any) -> None:
        pace = Pace()
        while (pushed := await more(context)) is not None:
            await done(partial(incoming.write, *pushed))
            metrics.PUSHED_BYTES.inc(len(pushed.data))
            pace.came(len(pushed.data))

    async def _name(
        self,
        manifest: pb.PushManifest,
        revision: PushedRevision,
        body: dict[str, Any] | None,
        push: dict[str, Any],
    ) -> pb.PushCommitted:
        """Have the adapter's spec name the revision: from then on the fleet comes to serve it."""
        api, unchanged = self._fleet.api, False
        if body is None:
            spec = named.new_spec(manifest, push)
            body = await pushed_specs.create(api, manifest.namespace, manifest.name, spec)
            named.check_agrees(manifest, body)
        else:
            there = body["spec"]["source"]["push"] or {}
            unchanged = there.get("revision") == revision.revision
        answer = await pushed_specs.point(api, body, push)
        metrics.PUSHES.labels("unchanged" if unchanged else "committed").inc()
        return pb.PushCommitted(
            revision=revision.revision,
            generation=answer["metadata"]["generation"],
            unchanged=unchanged,
        )

    async def tidy(self) -> None:
        """Let go of what adapters left that were deleted, and of what broken pushes left."""
        if self._complete():
            world = self._fleet.world
            keys = {key for each in world.existing.values() for key in each}
            gone = await done(lambda: self._spool.tidy(keys))
            if gone:
                _LOG.info("let go of what was pushed to %s", ", ".join(gone[:10]))
            brought = self._specs()
            self._named = {
                key: revision
                for key, revision in self._named.items()
                if revision not in brought and key not in gone
            }
        metrics.SPOOL_BYTES.set(await done(self._spool.used_bytes))

    async def WatchPush(  # noqa: N802
        self, request: pb.WatchPushRequest, context: Any
    ) -> AsyncIterator[pb.PushStatus]:
        """Tell what came of an adapter's revisions when that changes, at most twenty times a second."""
        fleet = self._fleet
        metadata = dict(context.invocation_metadata())
        about = {"namespace": request.namespace, "name": request.name}
        admit = partial(self._door.admit, metadata, "get", **about)
        await admit()
        stay = Stay(self._door, metadata, admit)
        there = await pushed_specs.read(fleet.api, request.namespace, request.name)
        if there is None:
            raise SourceNotFound(f"no LoRAAdapter {request.namespace}/{request.name}")
        key, uid = f"{request.namespace}/{request.name}", there["metadata"]["uid"]
        last = None
        with Bell.hung(key, uid, fleet.bodies, fleet.wakeups) as bell:
            while not context.cancelled():
                await stay.check()
                body = fleet.bodies.newest(there)
                pool = fleet.world.pool(named.pool_of(body["spec"], request.namespace))
                engines = pool_engines(pool, fleet.world, fleet.links) if pool else []
                found = status_of(body, engines)
                if found != last:
                    last = found
                    yield found
                await asyncio.sleep(_PAUSE_SECONDS)
                await bell.wait(_LOOK_SECONDS)
                if fleet.world.gone(uid):
                    raise SourceNotFound(f"{key} was deleted")

    def OpenSafePoint(  # noqa: N802
        self, request: pb.OpenSafePointRequest, context: Any
    ) -> AsyncIterator[pb.SafePointStatus]:
        """Let the adapter's pool recycle engines for as long as the call lasts."""
        return safe_point.hold(self._fleet, self._door, request, context)

    def _wanted(self) -> set[str]:
        """Return `<namespace>/<name>/<hex>` of each revision that a spec names."""
        return self._specs() | set(self._named.values())

    def _specs(self) -> set[str]:
        """Return those that the watches have brought."""
        return {
            f"{known.key}/{hex_of(known.pushed)}"
            for adapters in self._fleet.world.adapters.values()
            for known in adapters
            if known.pushed
        }
