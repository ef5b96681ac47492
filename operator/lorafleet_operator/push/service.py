"""The protocol of protos/lorafleet/v1alpha1/push.proto, served to trainers."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import (
    EngineUnreachable,
    InvalidAdapter,
    LorafleetError,
    SourceNotFound,
    StagingBusy,
    TransferInterrupted,
)
from lorafleet.grpc_errors import abort, abort_unexpected
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc

from lorafleet_operator import metrics
from lorafleet_operator.cluster import pushed_specs
from lorafleet_operator.push import named
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.progress import status_of
from lorafleet_operator.push.revision import described
from lorafleet_operator.sources import bounds
from lorafleet_operator.sources.pushed import hex_of, threads
from lorafleet_operator.world import pool_engines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lorafleet_operator.cluster.reviews import Account
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.push.access import Doorkeeper
    from lorafleet_operator.push.revision import PushedRevision
    from lorafleet_operator.push.spool import Spool

_LOG: Final = logging.getLogger(__name__)
_STALL_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.25
_PUSHES: Final = 8
"""Pushes that send at a time: the bound on what is in memory of them."""


class PushService(pb_grpc.PushServiceServicer):
    """Takes revisions, and tells what came of them."""

    def __init__(self, fleet: Fleet, spool: Spool, door: Doorkeeper) -> None:
        self._fleet = fleet
        self._spool = spool
        self._door = door
        self._going: dict[str, asyncio.Task[Any]] = {}  # by adapter
        self._places = asyncio.Semaphore(_PUSHES)

    async def Push(self, requests: Any, context: Any) -> AsyncIterator[pb.PushResponse]:  # noqa: N802 - gRPC's name
        """Take one revision."""
        try:
            manifest = await _first(requests)
            who = await self._door.admit(
                dict(context.invocation_metadata()),
                "create",
                namespace=manifest.namespace,
                name=manifest.name,
                subresource="push",
            )
            async with self._places:
                async for response in self._take(manifest, who, requests):
                    yield response
        except LorafleetError as error:
            metrics.PUSHES.labels("failed").inc()
            await abort(context, error)
        except asyncio.CancelledError:
            metrics.PUSHES.labels("failed").inc()
            raise
        except Exception as error:
            metrics.PUSHES.labels("failed").inc()
            await abort_unexpected(context, error)

    async def _take(
        self, manifest: pb.PushManifest, who: Account, requests: Any
    ) -> AsyncIterator[pb.PushResponse]:
        key = f"{manifest.namespace}/{manifest.name}"
        revision = await self._run(
            lambda: described(
                manifest.safetensors_header,
                manifest.adapter_config,
                manifest.tensor_digests,
                adapter=key,
                settings=self._fleet.source_settings,
            )
        )
        push = {"revision": revision.revision, "step": manifest.step}
        body = await pushed_specs.read(self._fleet.api, manifest.namespace, manifest.name)
        spec = named.new_spec(manifest, push) if body is None else body["spec"]
        if body is None:
            await self._door.may_create(who, manifest.namespace, manifest.name)
        else:
            named.check_agrees(manifest, body)
        pool = named.pool_of(spec, manifest.namespace)
        if not self._fleet.owns(pool):
            raise EngineUnreachable(f"another replica of the operator acts for pool {pool}")
        await self._alone(key)
        try:
            if await self._run(lambda: self._spool.use_again(key, revision.revision)):
                received = 0
                yield pb.PushResponse(accepted=pb.PushAccepted())
                await _commit_comes(requests)
            else:
                incoming = await self._run(
                    lambda: Incoming(self._spool, key, revision, self._wanted())
                )
                try:
                    yield pb.PushResponse(accepted=pb.PushAccepted(missing=incoming.missing))
                    await self._receive(incoming, requests)
                    await self._run(incoming.commit)
                finally:
                    received = incoming.received_bytes
                    await self._run(incoming.close)
            committed = await self._name(manifest, revision, body, push)
            committed.received_bytes = received
            yield pb.PushResponse(committed=committed)
        finally:
            if self._going.get(key) is asyncio.current_task():
                del self._going[key]

    async def _alone(self, key: str) -> None:
        """Become the adapter's only push: what a trainer began before it was killed gives way."""
        task = asyncio.current_task()
        assert task is not None
        before = self._going.get(key)
        self._going[key] = task
        if before is not None:
            before.cancel()
            await asyncio.wait([before], timeout=_STALL_SECONDS)
            if not before.done():
                raise StagingBusy(f"an earlier push of {key} does not end")

    async def _receive(self, incoming: Incoming, requests: Any) -> None:
        while True:
            request = await _next(requests)
            match request.WhichOneof("message"):
                case "bytes":
                    piece = request.bytes
                    write = partial(incoming.write, piece.tensor, piece.offset, piece.data)
                    await self._run(write)
                    metrics.PUSHED_BYTES.inc(len(piece.data))
                case "commit":
                    return
                case other:
                    raise TransferInterrupted(f"got {other or 'nothing'}, expected bytes or commit")

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

    async def WatchPush(  # noqa: N802
        self, request: pb.WatchPushRequest, context: Any
    ) -> AsyncIterator[pb.PushStatus]:
        """Tell what came of an adapter's revisions, at most four times a second."""
        fleet = self._fleet
        try:
            await self._door.admit(
                dict(context.invocation_metadata()),
                "get",
                namespace=request.namespace,
                name=request.name,
            )
            there = await pushed_specs.read(fleet.api, request.namespace, request.name)
            if there is None:
                raise SourceNotFound(f"no LoRAAdapter {request.namespace}/{request.name}")
            pool_key = named.pool_of(there["spec"], request.namespace)
            last = None
            while not context.cancelled():
                pool = fleet.world.pool(pool_key)
                engines = pool_engines(pool, fleet.world, fleet.links) if pool else []
                found = status_of(fleet.bodies.newest(there), engines)
                if found != last:
                    last = found
                    yield found
                await asyncio.sleep(_LOOK_SECONDS)
                if fleet.world.gone(there["metadata"]["uid"]):
                    raise SourceNotFound(f"{request.namespace}/{request.name} was deleted")
        except LorafleetError as error:
            await abort(context, error)

    def _wanted(self) -> set[str]:
        """Return `<namespace>/<name>/<hex>` of each revision that a spec names."""
        return {
            f"{known.key}/{hex_of(known.pushed)}"
            for adapters in self._fleet.world.adapters.values()
            for known in adapters
            if known.pushed
        }

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads(), work)


async def _first(requests: Any) -> pb.PushManifest:
    request = await _next(requests)
    if request.WhichOneof("message") != "manifest":
        raise TransferInterrupted("a push begins with its manifest")
    manifest: pb.PushManifest = request.manifest
    for what, name in (("namespace", manifest.namespace), ("name", manifest.name)):
        bounds.checked_object_name(name, what)
    if manifest.step < 0:
        raise InvalidAdapter(f"step {manifest.step} is negative")
    return manifest


async def _next(requests: Any) -> pb.PushRequest:
    try:
        async with asyncio.timeout(_STALL_SECONDS):
            request: pb.PushRequest = await anext(requests)
            return request
    except StopAsyncIteration:
        raise TransferInterrupted("the stream ended before its commit") from None
    except TimeoutError:
        raise TransferInterrupted(f"nothing came for {_STALL_SECONDS:g} s") from None


async def _commit_comes(requests: Any) -> None:
    request = await _next(requests)
    if request.WhichOneof("message") != "commit":
        raise TransferInterrupted("nothing is missing: expected commit")
