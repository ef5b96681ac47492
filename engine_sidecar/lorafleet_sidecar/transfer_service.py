"""The two streaming methods of the sidecar's service: StageAdapter and SendChunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc.aio
    from lorafleet.profile import EngineProfile

    from lorafleet_sidecar.store import RevisionStore


@dataclass(frozen=True)
class TransferSettings:
    """What bounds a transfer; seconds and bytes."""

    stall_seconds: float = 60.0  # silence after which a stream is ended
    receiver_processes: int = 0  # 0: chunks come on the StageAdapter stream alone
    receiver_host: str = "127.0.0.1"  # where the receiver processes listen


class TransferService:
    """StageAdapter and SendChunks of one sidecar, and the receiver processes it owns."""

    async def close(self) -> None:
        """End the receiver processes and the worker threads."""
        raise NotImplementedError


async def add_transfer_service(
    server: grpc.aio.Server,
    store: RevisionStore,
    profile_source: Callable[[], EngineProfile],
    settings: TransferSettings | None = None,
) -> TransferService:
    """Register both methods on `server` (before its start) and start the receivers.

    `profile_source` gives the engine's current profile or raises a LorafleetError (its reason
    travels to the client). The other methods of `SidecarService` may be registered as usual
    beside it: the handlers here are looked up first, so call this BEFORE
    `add_SidecarServiceServicer_to_server`.
    """
    raise NotImplementedError


MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 17 << 20),
    ("grpc.max_send_message_length", 17 << 20),
)
"""Pass as `options` to `grpc.aio.server`: the largest chunk is 16 MiB."""
