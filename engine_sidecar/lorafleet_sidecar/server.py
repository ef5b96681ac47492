"""Puts one sidecar together, runs it, and takes it down again."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from lorafleet.certificates import CertificateFiles
from lorafleet.server_tls import server_tls
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc

from lorafleet_sidecar.addressee import Addressee
from lorafleet_sidecar.agent import Agent
from lorafleet_sidecar.callers import Callers
from lorafleet_sidecar.desired import Desired
from lorafleet_sidecar.engine import STOCK_GRACE_SECONDS, EngineClient
from lorafleet_sidecar.first_requests import FirstRequests
from lorafleet_sidecar.metrics import SidecarCollector
from lorafleet_sidecar.metrics_server import MetricsServer
from lorafleet_sidecar.plugin_files import install_plugin
from lorafleet_sidecar.restore import Restorer
from lorafleet_sidecar.service import SERVICE_NAME, SidecarServicer
from lorafleet_sidecar.store import RevisionStore
from lorafleet_sidecar.transfer_service import (
    SERVER_OPTIONS,
    TransferService,
    TransferSettings,
    add_transfer_service,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.settings import SidecarSettings

log = logging.getLogger(__name__)

# Calls in progress get this long at the end; every operation survives being cut off.
_GRACE_SECONDS = 1.0
_STORE_PAUSE_SECONDS = 0.1


class Sidecar:
    """A running sidecar: gRPC and metrics servers, the agent and its restore loop."""

    def __init__(
        self, settings: SidecarSettings, *, stock_grace_seconds: float = STOCK_GRACE_SECONDS
    ) -> None:
        self._settings = settings
        self.certificates = CertificateFiles(settings.tls_dir) if settings.tls_dir else None
        self.store = RevisionStore.open(settings.volume, settings.arena_bytes)
        desired = _restore_desired(self.store)
        engine = EngineClient(settings, stock_grace_seconds=stock_grace_seconds)
        self.agent = Agent(engine, self.store, desired, settings)
        self.restorer = Restorer(self.agent, settings.refresh_seconds)
        self.first_requests = FirstRequests(self.agent, settings.refresh_seconds)
        self.port = 0
        callers = [Callers(settings.operator_name, settings.peer_name)] if settings.tls_dir else []
        self._server = grpc.aio.server(
            interceptors=[*callers, Addressee(settings.pod_uid, strict=bool(callers))],
            options=SERVER_OPTIONS,
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # stubs
        self._transfer: TransferService | None = None
        self._metrics: MetricsServer | None = None
        self._loops: list[asyncio.Task[None]] = []

    @property
    def metrics_port(self) -> int:
        """The port of the metrics server, 0 without one."""
        return self._metrics.port if self._metrics else 0

    async def start(self) -> Self:
        """Look at the engine once, then listen. Raises OSError when an address is taken."""
        settings = self._settings
        self.port = self._listen()
        _open_run_directory(settings.run_directory)
        install_plugin(settings.plugin_directory)
        # A sidecar that restarts alone first learns what the engine reads, then takes bytes.
        await self.agent.look()
        pb_grpc.add_SidecarServiceServicer_to_server(  # type: ignore[no-untyped-call]
            SidecarServicer(self.agent, self.first_requests, settings.drain_timeout_seconds),
            self._server,
        )
        self._transfer = await add_transfer_service(
            self._server,
            self.store,
            self.agent.profiles.get,
            TransferSettings(
                stall_seconds=settings.stall_seconds,
                resume_seconds=settings.resume_seconds,
                receivers=settings.receivers,
                receiver_host=settings.listen.rpartition(":")[0],
                receiver_base_port=settings.receiver_base_port,
                certificates=self.certificates,
                operator_name=settings.operator_name,
                pod_uid=settings.pod_uid,
                peer_name=settings.peer_name,
            ),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        if settings.metrics_listen:
            collector = SidecarCollector(self.agent, self._transfer, self.certificates)
            try:
                self._metrics = MetricsServer(settings.metrics_listen, collector, self.agent)
            except OSError as error:
                raise OSError(f"cannot listen on {settings.metrics_listen}: {error}") from error
            self._metrics.start()
        self._loops = [
            asyncio.create_task(self.restorer.run(), name="restore"),
            asyncio.create_task(self.first_requests.run(), name="first requests"),
            asyncio.create_task(self._post_store_changes(), name="store changes"),
        ]
        log.info("listening on %s, metrics on port %s", settings.listen, self.metrics_port)
        return self

    async def stop(self) -> None:
        """Refuse new calls, end the streams, close everything. Takes about a second at most."""
        await self._health.enter_graceful_shutdown()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._server.stop(_GRACE_SECONDS)
        await self.agent.close()
        if self._transfer is not None:
            await self._transfer.close()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.stop)
        await self.agent.engine.close()
        self.store.close()

    async def _post_store_changes(self) -> None:
        seen = self.store.changes.sequence
        while True:
            seen = await self.store.changes.wait(seen)
            self.agent.post()
            await asyncio.sleep(_STORE_PAUSE_SECONDS)

    def _listen(self) -> int:
        settings = self._settings
        try:
            if self.certificates is None:
                port = self._server.add_insecure_port(settings.listen)
            else:
                credentials = server_tls(self.certificates, mutual=True)
                port = self._server.add_secure_port(settings.listen, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {settings.listen}: {error}") from error
        return int(port)


def _open_run_directory(path: Path) -> None:
    """Let vLLM, which runs as another user of the same group, make its socket there.

    What is made in it belongs to that group (setgid), whatever group vLLM's own is.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.stat().st_uid == os.geteuid():
        path.chmod(0o2770)


def _restore_desired(store: RevisionStore) -> Desired:
    try:
        return Desired.restore(store.published, store.set_published)
    except ValueError as error:
        log.warning("%s; starting from what the engine reports", error)
        return Desired(save=store.set_published)
