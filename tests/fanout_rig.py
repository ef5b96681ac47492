"""Several sidecars of one pool that know who they are, and a source that counts its reads."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.fanout import Target
from lorafleet_operator.transfer.streaming import Payload
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from staging_builders import SourceAdapter
    from staging_server import Serving

CHUNK = 64 << 10


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
        return Payload(manifest, self.adapter.cuts(CHUNK), self.read)


class Pool:
    """Sidecars by pod UID ("pod-0", ..), in this process, each with a store of its own."""

    def __init__(self) -> None:
        self.sidecars: dict[str, Serving] = {}
        self.targets: dict[str, Target] = {}

    def taken(self) -> dict[str, int]:
        """Payload bytes that each sidecar took into its arena."""
        return {uid: each.service.received_bytes for uid, each in self.sidecars.items()}

    def digests(self) -> set[str]:
        """What all the arenas hold, of any sidecar."""
        stores = [each.store for each in self.sidecars.values()]
        return {revision.digest for store in stores for revision in store.revisions()}


@asynccontextmanager
async def pool(volume: Path, engines: int, **settings: Any) -> AsyncIterator[Pool]:
    """Serve `engines` sidecars until the block ends."""
    made = Pool()
    async with AsyncExitStack() as stack:
        for number in range(engines):
            uid = f"pod-{number}"
            each = TransferSettings(pod_uid=uid, **settings)
            made.sidecars[uid] = await stack.enter_async_context(
                serving(volume / uid, settings=each)
            )
            client = SidecarClient("127.0.0.1", made.sidecars[uid].port)
            stack.push_async_callback(client.close)
            made.targets[uid] = Target(client, kind="one profile")
        yield made
