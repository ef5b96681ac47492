"""Another sidecar of the pool, seen from this one: the client side of its StageAdapter."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from lorafleet import frames
from lorafleet.errors import EngineUnreachable, LorafleetError, from_reason
from lorafleet.grpc_errors import REASON_KEY
from lorafleet.grpc_streams import WrittenCall
from lorafleet.pulse import Pulse
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.transfer_settings import HEALTH, MESSAGE_OPTIONS, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.certificates import CertificateFiles

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *MESSAGE_OPTIONS,
    # A manifest carries the header of many tensors. A new pod may have the address of an old one.
    ("grpc.max_send_message_length", 128 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
)


@dataclass(frozen=True)
class Dialer:
    """How to reach the sidecars of this pool, and no others.

    With TLS a neighbour must prove by its certificate that it is `peer_name`, whatever the
    caller who named its address says: without that name nothing is passed on.
    """

    certificates: CertificateFiles | None = None
    peer_name: str = ""

    @property
    def may_dial(self) -> bool:
        """Whether neighbours can be told from strangers (without TLS nobody can be)."""
        return self.certificates is None or bool(self.peer_name)

    def channel(self, neighbour: pb.Neighbour) -> grpc.aio.Channel:
        """Return a channel with the certificates as they are now."""
        host = neighbour.host
        target = f"[{host}]:{neighbour.port}" if ":" in host else f"{host}:{neighbour.port}"
        if self.certificates is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        found = self.certificates.current()
        credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
        override = (("grpc.ssl_target_name_override", self.peer_name),)
        return grpc.aio.secure_channel(target, credentials, options=_OPTIONS + override)


class NeighbourCall:
    """One StageAdapter stream to a neighbour. Errors are LorafleetErrors, each wait is bounded."""

    def __init__(self, dialer: Dialer, neighbour: pb.Neighbour, stall_seconds: float) -> None:
        self.pod_uid = neighbour.pod_uid
        self._name = f"sidecar at {neighbour.host}:{neighbour.port}"
        self._stall_seconds = stall_seconds
        self._channel = dialer.channel(neighbour)
        self._question = _Question(dialer, neighbour)
        self._pulse = Pulse(self._name, self._ask, stall_seconds)
        method: Any = self._channel.stream_stream(
            f"/{SERVICE}/StageAdapter",
            request_serializer=None,  # messages are passed on as they came
            response_deserializer=pb.StageAdapterResponse.FromString,
        )
        self._call = WrittenCall(method())

    async def open(
        self, manifest: pb.AdapterManifest, seconds: float
    ) -> pb.StagingAccepted | pb.StagedRevision:
        """Send the manifest; return what the neighbour answers within `seconds`."""
        raw = frames.encode_manifest(manifest.SerializeToString())
        async with self._within(seconds, "answer the manifest"):
            await self._call.write(raw)
            answer = await self._read()
        if answer.WhichOneof("message") == "committed":
            return answer.committed
        return answer.accepted

    async def write(self, message: bytes) -> None:
        """Pass one message on; waits while the neighbour is slower, for the stall time at most."""
        async with self._within(self._stall_seconds, "take a chunk"):
            await self._call.write(message)

    async def commit(
        self, seconds: float
    ) -> tuple[list[pb.ForwardOutcome], pb.StagedRevision | LorafleetError]:
        """Commit; return what came of those behind the neighbour, and of itself."""
        behind: list[pb.ForwardOutcome] = []
        try:
            async with self._within(seconds, "commit"):
                await self._call.write(frames.encode_commit())
                answer = await self._read()
                if answer.WhichOneof("message") == "forwarded":
                    behind.extend(answer.forwarded.outcomes)
                    answer = await self._read()
        except LorafleetError as error:
            return behind, error
        return behind, answer.committed

    async def close(self) -> None:
        """End the call, whatever its state."""
        self._call.cancel()
        await self._pulse.stop()
        await self._channel.close(None)
        await self._question.close()

    async def _read(self) -> pb.StageAdapterResponse:
        answer = await self._call.read()
        if not isinstance(answer, pb.StageAdapterResponse):  # grpc.aio.EOF
            raise await self._call.ended()
        return answer

    async def _ask(self) -> None:
        try:
            await self._question.ask()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise self._translate(error.code(), error.details(), None) from None

    @asynccontextmanager
    async def _within(self, seconds: float, what: str) -> Any:
        try:
            async with self._pulse.within(seconds, what):
                yield
        except grpc.aio.AioRpcError as error:
            raise self._translate(
                error.code(), error.details(), error.trailing_metadata()
            ) from None

    def _translate(
        self, code: grpc.StatusCode, details: str | None, metadata: Any
    ) -> LorafleetError:
        reason = next(_reasons(metadata), "")
        if reason:
            return from_reason(reason, details or f"{self._name} gave no message ({reason})")
        line = " ".join(f"{self._name}: {code.name}: {details or ''}".split())
        return EngineUnreachable(line)


class _Question:
    """Whether a neighbour lives, over a connection of its own.

    It is made when it is first needed, and anew with renewed certificates: a transfer may outlast
    those that it began with.
    """

    def __init__(self, dialer: Dialer, neighbour: pb.Neighbour) -> None:
        self._dialer = dialer
        self._neighbour = neighbour
        self._with: object = None
        self._channel: Any = None

    async def ask(self) -> None:
        """Return when there was an answer. Raises AioRpcError."""
        files = self._dialer.certificates
        now = files.current() if files is not None else None
        if self._channel is None or now is not self._with:
            await self.close()
            self._channel, self._with = self._dialer.channel(self._neighbour), now
        await self._channel.unary_unary(HEALTH)(b"")

    async def close(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)


def _reasons(metadata: Any) -> Iterator[str]:
    return (str(value) for key, value in metadata or () if key == REASON_KEY)
