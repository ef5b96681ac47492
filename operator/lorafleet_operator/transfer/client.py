"""SidecarClient: the methods of one sidecar, with its errors translated.

Every call raises a LorafleetError and nothing else of gRPC: the reason that the sidecar sent in
its trailing metadata names the class, and without one the sidecar itself did not answer.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from lorafleet.errors import EngineUnreachable, LorafleetError, from_reason
from lorafleet.grpc_streams import WrittenCall
from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc

from lorafleet_operator import term

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lorafleet.certificates import Certificates

REASON_KEY: Final = "lorafleet-reason"
POD_KEY: Final = "lorafleet-pod-uid"
SERVICE: Final = "/lorafleet.v1alpha1.SidecarService/"
HEALTH: Final = "/grpc.health.v1.Health/Check"

# A manifest carries a header of many tensors; a chunk is at most 16 MiB.
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 128 << 20),
    ("grpc.max_receive_message_length", 128 << 20),
    # A new pod may get the address of an old one: its channel must not share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # An answer above 12 KiB would make a connection keep 64 KiB for the next one.
    ("grpc.experimental.tcp_max_read_buffer_size", 8 << 10),
)
_CALLS_SECONDS: Final = 3600.0
"""So long may a call go on over a connection whose certificates were renewed."""
_SILENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INTERNAL,  # a write to a connection that just broke; ours has a reason
    }
)


@dataclass(frozen=True)
class Tls:
    """What mutual TLS takes: our certificates, and the name that the sidecar's must carry."""

    certificates: Certificates
    server_name: str = ""
    """Empty: the address that is dialled."""


class SidecarClient:
    """The sidecar at `host`:`port`. Opens no connection before the first call.

    What changes an engine (load, unload, send, stage) raises TermOver instead when the pass that
    wants it may not act any more.
    """

    def __init__(self, host: str, port: int, tls: Tls | None = None, *, pod_uid: str = "") -> None:
        """pod_uid: the pod that orders are for; the sidecar of another one refuses them."""
        self._metadata = ((POD_KEY, pod_uid),) if pod_uid else ()
        self.host = host
        self.port = port
        self._tls = tls
        self._channel = open_channel(host, port, tls)
        self._stub: Any = pb_grpc.SidecarServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._stripes: dict[int, Any] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._waits: set[asyncio.Timeout] = set()

    async def renew(self, tls: Tls, seconds: float) -> None:
        """Make every later call over a connection with these certificates, once it has answered.

        Calls in progress go on where they are. Raises EngineUnreachable and leaves all as it is
        when the sidecar does not take the certificates.
        """
        fresh = open_channel(self.host, self.port, tls)
        stub: Any = pb_grpc.SidecarServiceStub(fresh)  # type: ignore[no-untyped-call]
        try:
            async with self.answering():
                await stub.ListAdapters(
                    pb.ListAdaptersRequest(), timeout=seconds, metadata=self._metadata
                )
        except BaseException:
            await fresh.close()
            raise
        self._replace(tls, fresh, stub)

    def use(self, tls: Tls | None) -> None:
        """Connect with these certificates from now on."""
        fresh = open_channel(self.host, self.port, tls)
        self._replace(tls, fresh, pb_grpc.SidecarServiceStub(fresh))  # type: ignore[no-untyped-call]

    def _replace(self, tls: Tls | None, channel: Any, stub: Any) -> None:
        for old in (self._channel, *self._stripes.values()):
            closing = asyncio.create_task(old.close(_CALLS_SECONDS))
            self._retired.add(closing)
            closing.add_done_callback(self._retired.discard)
        self._tls, self._channel, self._stub, self._stripes = tls, channel, stub, {}

    @property
    def address(self) -> str:
        """`host:port`, for messages."""
        return f"{self.host}:{self.port}"

    async def inventory(self, seconds: float) -> pb.Inventory:
        """Return what the sidecar observes now."""
        async with self.answering():
            answer = await self._stub.ListAdapters(pb.ListAdaptersRequest(), timeout=seconds)
        inventory: pb.Inventory = answer.inventory
        return inventory

    async def profile(self, seconds: float) -> EngineProfile:
        """Return what the engine can take.

        Raises EngineUnreachable before vLLM is up, LorafleetError for an answer that is none.
        """
        async with self.answering():
            answer = await self._stub.GetEngineProfile(
                pb.GetEngineProfileRequest(), timeout=seconds
            )
        try:
            return EngineProfile.from_json(answer.profile_json)
        except ValueError as error:
            raise LorafleetError(
                f"sidecar at {self.address} sent an engine profile that cannot be read: {error}"
            ) from None

    async def watch(self) -> AsyncIterator[pb.Inventory]:
        """Yield the inventory now and at each change, until the stream breaks."""
        call = self._stub.WatchEngine(pb.WatchEngineRequest())
        try:
            while True:
                async with self.answering():
                    answer = await call.read()
                if answer is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                    return
                yield answer.inventory
        finally:
            call.cancel()

    async def load(self, request: pb.LoadAdapterRequest, seconds: float) -> pb.LoadedAdapter:
        """Make the engine load a staged revision and, if asked, publish it."""
        term.check()
        async with self.answering():
            answer = await self._stub.LoadAdapter(request, timeout=seconds, metadata=self._metadata)
        loaded: pb.LoadedAdapter = answer.loaded
        return loaded

    async def unload(self, request: pb.UnloadAdapterRequest, seconds: float) -> None:
        """Hide the served name, drain and unload its revisions."""
        term.check()
        async with self.answering():
            await self._stub.UnloadAdapter(request, timeout=seconds, metadata=self._metadata)

    async def restart_engine(self, instance: str, *, force: bool, seconds: float) -> None:
        """Make the engine's vLLM end if it is `instance`; raises EngineRejected while requests run,
        unless forced."""
        request = pb.RestartEngineRequest(engine_instance=instance, force=force)
        term.check()
        async with self.answering():
            await self._stub.RestartEngine(request, timeout=seconds, metadata=self._metadata)

    async def refuse(self, request: pb.RefuseNamesRequest, seconds: float) -> None:
        """Let requests fail that wait for names which will not be served there."""
        term.check()
        async with self.answering():
            await self._stub.RefuseNames(request, timeout=seconds, metadata=self._metadata)

    async def send(self, request: pb.SendAdapterRequest, seconds: float) -> pb.ForwardReport:
        """Make the sidecar fill neighbours with a revision that is staged there."""
        term.check()
        async with self.answering():
            answer = await self._stub.SendAdapter(request, timeout=seconds, metadata=self._metadata)
        report: pb.ForwardReport = answer.report
        return report

    def stage(self) -> ByteStream:
        """Open a StageAdapter stream."""
        term.check()
        method = self._channel.stream_stream(
            SERVICE + "StageAdapter",
            request_serializer=_as_is,
            response_deserializer=pb.StageAdapterResponse.FromString,
        )
        return ByteStream(self, method(metadata=self._metadata))

    def stripe(self, port: int) -> ByteStream:
        """Open a SendChunks stream to the receiver process at `port` of the same host."""
        if port not in self._stripes:
            self._stripes[port] = open_channel(self.host, port, self._tls)
        method = self._stripes[port].stream_unary(
            SERVICE + "SendChunks",
            request_serializer=_as_is,
            response_deserializer=pb.SendChunksResponse.FromString,
        )
        return ByteStream(self, method(metadata=self._metadata))

    def question(self) -> LifeQuestion:
        """Return the question whether the sidecar lives, on a connection of its own."""
        return LifeQuestion(self.address, lambda: open_channel(self.host, self.port, self._tls))

    async def close(self) -> None:
        """Close all connections; calls in progress end."""
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
        for channel in (self._channel, *self._stripes.values()):
            await channel.close()
        for closing in self._retired:
            closing.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Wait for the sidecar, and raise what went wrong in its own words.

        A wait ends with the client: some of the library's would go on, and what ends the others is a
        CancelledError, which says that the waiting task is to end.
        """
        closed = EngineUnreachable(f"sidecar at {self.address}: the connection was closed")
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.address) from None
        except TimeoutError:
            raise closed from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise closed from None


class ByteStream:
    """One client-streaming call that takes encoded messages, so that each is encoded once."""

    def __init__(self, client: SidecarClient, call: Any) -> None:
        self._client = client
        self._call = WrittenCall(call)

    async def write(self, message: bytes) -> None:
        """Send one encoded request; waits while the other side is slower."""
        async with self._client.answering():
            await self._call.write(message)

    async def read(self) -> pb.StageAdapterResponse:
        """Return the next answer of a StageAdapter stream."""
        async with self._client.answering():
            answer = await self._call.read()
            if not isinstance(answer, pb.StageAdapterResponse):  # grpc.aio.EOF
                raise await self._call.ended()
        return answer

    async def finish(self) -> None:
        """Say that nothing follows and wait until the other side has dealt with it all."""
        async with self._client.answering():
            await self._call.finish()

    def cancel(self) -> None:
        """End the call now, whatever its state."""
        self._call.cancel()


class LifeQuestion:
    """Asks whether the sidecar at `address` lives; every answer will do."""

    def __init__(self, address: str, connect: Callable[[], Any]) -> None:
        self._address = address
        self._connect = connect
        self._channel: Any = None  # few transfers take so long that anybody asks

    async def ask(self) -> None:
        """Return when it has answered. Raises EngineUnreachable if it cannot be reached."""
        if self._channel is None:
            self._channel = self._connect()
        try:
            await self._channel.unary_unary(HEALTH)(b"")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise translate(error, self._address) from None

    async def close(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def open_channel(host: str, port: int, tls: Tls | None) -> Any:
    """Return a channel to `host`:`port`, with mutual TLS if `tls` is given."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    own = tls.certificates
    credentials = grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)
    options: tuple[tuple[str, Any], ...] = _OPTIONS
    if tls.server_name:
        options = (*options, ("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(target, credentials, options=options)


def translate(error: grpc.aio.AioRpcError, address: str) -> LorafleetError:
    """Return the error that the sidecar at `address` meant."""
    return translate_status(
        error.code(), error.details() or "", _reason(error.trailing_metadata()), address
    )


def translate_status(
    code: grpc.StatusCode, details: str, reason: str, address: str
) -> LorafleetError:
    """Return the error for a call's final status; `reason` is empty if none was sent."""
    if reason:
        return from_reason(reason, details or f"sidecar at {address} gave no message ({reason})")
    said = details or "the call ended early"
    text = f"sidecar at {address}: {code.name}: {said}".splitlines()[0]
    if code in _SILENT:
        return EngineUnreachable(text)
    return LorafleetError(text)


def _reason(metadata: Any) -> str:
    return next((str(value) for key, value in metadata or () if key == REASON_KEY), "")


def _as_is(message: bytes) -> bytes:
    return message
