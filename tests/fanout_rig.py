"""Several sidecars of one pool that know who they are, and a source that counts its reads."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet_operator.transfer.client import SidecarClient, Tls
from lorafleet_operator.transfer.fanout import Target
from lorafleet_operator.transfer.streaming import Payload
from lorafleet_sidecar.staging_dir import StagingDirectory
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_builders import engine_profile
from staging_server import LIMIT, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from staging_builders import SourceAdapter
    from staging_server import Serving

CHUNK = 64 << 10
SERVER = Path(__file__).with_name("staging_server.py")


class CountedSource:
    """An adapter's data; `reads` holds the offset of each read, `before` is awaited first."""

    def __init__(
        self, adapter: SourceAdapter, before: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        self.adapter = adapter
        self.reads: list[int] = []
        self._before = before

    async def read(self, offset: int, length: int) -> bytes:
        if self._before is not None:
            await self._before(len(self.reads))
        self.reads.append(offset)
        return self.adapter.data[offset : offset + length]

    def payload(self, **changes: Any) -> Payload:
        manifest = self.adapter.manifest(CHUNK, **changes)
        return Payload(manifest, self.adapter.cuts(CHUNK, manifest.cut_before), self.read)


class Pool:
    """Sidecars by pod UID ("pod-0", ..), in this process, each with a store of its own."""

    def __init__(self) -> None:
        self.sidecars: dict[str, Serving] = {}
        self.targets: dict[str, Target] = {}
        self.mortal: asyncio.subprocess.Process | None = None

    def taken(self) -> dict[str, int]:
        """Payload bytes that each sidecar took into its arena."""
        return {uid: each.service.received_bytes for uid, each in self.sidecars.items()}

    def arrived(self, uid: str) -> int:
        """Chunks that have arrived of the transfer that the sidecar is in."""
        store = self.sidecars[uid].store
        for entry in store.stagings():
            received = StagingDirectory.find(store.volume, entry.staging_id).received()
            try:
                return received.count()
            finally:
                received.close()
        return 0

    def dead(self) -> bool:
        """Whether the one that is a process of its own has ended."""
        return self.mortal is not None and self.mortal.returncode is not None

    def digests(self) -> set[str]:
        """What all the arenas hold, of any sidecar."""
        stores = [each.store for each in self.sidecars.values()]
        return {revision.digest for store in stores for revision in store.revisions()}


@asynccontextmanager
async def pool(
    volume: Path,
    engines: int,
    dies: tuple[int, str] = (-1, ""),
    tls: Tls | None = None,
    own: dict[str, dict[str, Any]] | None = None,
    layers: int = 2,
    **settings: Any,
) -> AsyncIterator[Pool]:
    """Serve `engines` sidecars until the block ends.

    `dies` is the number of one that is a process of its own, and the step at which it kills itself;
    `own` are settings of some of them, by pod UID; `layers` are those of the engines; `tls` is what the operator connects with.
    """
    made = Pool()
    async with AsyncExitStack() as stack:
        for number in range(engines):
            uid = f"pod-{number}"
            if number == dies[0]:
                made.mortal, port = await stack.enter_async_context(
                    _process(volume / uid, uid, dies[1], layers)
                )
                client = SidecarClient("127.0.0.1", port)
                stack.push_async_callback(client.close)
                made.targets[uid] = Target(client, kind="one profile")
                continue
            each = TransferSettings(pod_uid=uid, **(settings | (own or {}).get(uid, {})))
            made.sidecars[uid] = await stack.enter_async_context(
                serving(volume / uid, settings=each, profile=partial(engine_profile, layers))
            )
            client = SidecarClient("127.0.0.1", made.sidecars[uid].port, tls)
            stack.push_async_callback(client.close)
            made.targets[uid] = Target(client, kind="one profile")
        yield made


@asynccontextmanager
async def slow_link(port: int, bytes_per_second: float, jitter: float) -> AsyncIterator[int]:
    """Yield a port that leads to `port`, each connection at a rate, each piece up to `jitter` s late.

    Nothing piles up in it: who sends faster is held back, as by a shaped link.
    """
    tasks: set[asyncio.Task[None]] = set()
    delays = random.Random(7)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            while piece := await reader.read(16 << 10):
                await asyncio.sleep(len(piece) / bytes_per_second + delays.uniform(0, jitter))
                writer.write(piece)
                await writer.drain()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, limit=8 << 10)
        for each in (carry(reader, back), carry(there, writer)):
            tasks.add(asyncio.create_task(each))

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    server = await asyncio.start_server(meet, sock=listening, limit=8 << 10)
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is let go of in the loop's next turn


@asynccontextmanager
async def _process(
    volume: Path, pod_uid: str, crash_at: str, layers: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), str(volume), str(LIMIT), "0", pod_uid, "127.0.0.1", str(layers),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "LORAFLEET_CRASH_AT": crash_at, "PYTHONPATH": str(SERVER.parent)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, int(await asyncio.wait_for(process.stdout.readline(), 60))
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
