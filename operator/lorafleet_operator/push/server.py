"""The gRPC server that trainers push to, and the spool behind it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from lorafleet.certificates import CertificateFiles
from lorafleet.push.frames import SERVICE
from lorafleet.push.sending import MOST_MANIFEST_BYTES
from lorafleet.server_tls import server_tls
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc

from lorafleet_operator.push.access import Doorkeeper
from lorafleet_operator.push.callers import Callers
from lorafleet_operator.push.service import PushService
from lorafleet_operator.push.spool import Spool
from lorafleet_operator.push.turns import Turns
from lorafleet_operator.sources.pushed import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet_operator.fleet import Fleet

_LOG: Final = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 1.0
_TIDY_SECONDS: Final = 30.0
_CALLS: Final = 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MOST_MANIFEST_BYTES),
    # One caller may be hostile: what it begins and breaks off must cost the others nothing.
    ("grpc.max_concurrent_streams", 32),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.http2.bdp_probe", 0),  # or gRPC takes megabytes of messages that nobody reads yet
    ("grpc.so_reuseport", 0),
    # A trainer that is gone without a word is noticed, or its push would hold its place.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class PushServer:
    """Serves pushes at `settings.push_listen`."""

    def __init__(self, fleet: Fleet, complete: Callable[[], bool]) -> None:
        """`complete`: whether the watches have brought the whole cluster.

        Raises OSError when the address is taken, CertificatesUnusable.
        """
        settings = fleet.settings
        assert settings.push_dir is not None
        self._fleet = fleet
        self._spool = Spool(
            settings.push_dir,
            limit_bytes=settings.push_bytes,
            namespace_bytes=settings.push_namespace_bytes,
            revisions=settings.push_revisions,
        )
        door = Doorkeeper(fleet.api, settings.push_audience, asyncio.get_running_loop().time)
        turns = Turns()
        self._service = PushService(fleet, self._spool, door, turns, complete)
        self._server = grpc.aio.server(
            interceptors=[Callers(door, turns)], options=_OPTIONS, maximum_concurrent_rpcs=_CALLS
        )
        pb_grpc.add_PushServiceServicer_to_server(  # type: ignore[no-untyped-call]
            self._service, self._server
        )
        # Of two handlers for a method gRPC takes the one registered last: this one gets the bytes.
        taking = {
            "Push": grpc.stream_stream_rpc_method_handler(
                self._service.Push, response_serializer=pb.PushResponse.SerializeToString
            )
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, taking),)
        )
        self._server.add_registered_method_handlers(SERVICE, taking)  # type: ignore[attr-defined]  # stubs
        if settings.push_tls_dir is not None:
            files = CertificateFiles(settings.push_tls_dir)
            self.port = self._server.add_secure_port(
                settings.push_listen, server_tls(files, mutual=False)
            )
        elif _is_loopback(settings.push_listen):
            self.port = self._server.add_insecure_port(settings.push_listen)
        else:
            raise OSError(
                f"{settings.push_listen} is not on loopback: give it LORAFLEET_PUSH_TLS_DIR"
            )
        self._tidying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve. Raises OSError when the folder for pushes cannot be used."""
        await asyncio.get_running_loop().run_in_executor(threads(), self._spool.look)
        await self._server.start()
        self._tidying = asyncio.create_task(self._tidy(), name="spool")
        _LOG.info("taking pushes on port %s", self.port)

    async def stop(self) -> None:
        """Cut off what is being pushed: the next try goes on from there."""
        if self._tidying is not None:
            self._tidying.cancel()
        await self._server.stop(_GRACE_SECONDS)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                await self._service.tidy()
            except Exception as error:
                _LOG.warning("cannot tidy what was pushed: %s", error)


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
