"""The real transfer service on a loopback port, in this process or as one of its own.

As a program: `python staging_server.py VOLUME LIMIT_BYTES RECEIVERS [POD_UID [HOST LAYERS]]` prints its port and
serves until it is killed; faults are injected by LORAFLEET_CRASH_AT.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from lorafleet.server_tls import server_tls
from lorafleet_sidecar.callers import Callers
from lorafleet_sidecar.store import RevisionStore
from lorafleet_sidecar.transfer_service import (
    SERVER_OPTIONS,
    TransferService,
    TransferSettings,
    add_transfer_service,
)
from staging_builders import engine_profile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lorafleet.profile import EngineProfile

LIMIT = 16 << 20


@dataclass
class Serving:
    """A running service, its store, and a channel to it."""

    store: RevisionStore
    service: TransferService
    channel: grpc.aio.Channel
    port: int


@asynccontextmanager
async def serving(
    volume: Path,
    limit: int = LIMIT,
    settings: TransferSettings | None = None,
    profile: Callable[[], EngineProfile] = engine_profile,
    host: str = "127.0.0.1",
) -> AsyncIterator[Serving]:
    """Serve `volume` until the block ends; nothing is held by an engine."""
    store = RevisionStore.open(volume, limit)
    store.set_holds(())
    callers = []
    if settings is not None and settings.certificates is not None:
        callers = [Callers("operator.lorafleet", settings.peer_name)]
    server = grpc.aio.server(interceptors=callers, options=SERVER_OPTIONS)
    service = await add_transfer_service(server, store, profile, settings)
    if settings is not None and settings.certificates is not None:
        port = server.add_secure_port(f"{host}:0", server_tls(settings.certificates, mutual=True))
    else:
        port = server.add_insecure_port(f"{host}:0")
    await server.start()
    options = (("grpc.max_send_message_length", 64 << 20),)
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=options) as channel:
        yield Serving(store, service, channel, port)
    await server.stop(5)
    await service.close()
    store.close()


async def _main(
    volume: Path,
    limit: int,
    receivers: int,
    pod_uid: str = "",
    host: str = "127.0.0.1",
    layers: str = "2",
) -> None:
    settings = TransferSettings(receivers=receivers, pod_uid=pod_uid)
    profile = partial(engine_profile, int(layers))
    async with serving(volume, limit, settings, profile, host) as running:
        print(running.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
