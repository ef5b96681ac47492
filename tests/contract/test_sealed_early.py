"""What a receiver process counts in is sealed by the sidecar before the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
from counting_threads import Counting
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_builders import source_adapter
from staging_client import StageCall, send_stripe, stage
from staging_server import serving
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

ADAPTER = source_adapter(1)
TENSORS = 8
"""Of 32 KiB, two in each chunk."""


async def test_tensors_of_a_receiver_are_sealed_while_others_come(volume: Path) -> None:
    async with serving(volume, settings=TransferSettings(receivers=1)) as sidecar:
        sidecar.service.stagings.hashing.shutdown()
        hashing = sidecar.service.stagings.hashing = Counting(2)
        call = StageCall(sidecar.channel)
        accepted = (await call.manifest(ADAPTER.manifest())).accepted
        [port] = accepted.receiver_ports
        chunks = [ADAPTER.chunk(*cut) for cut in ADAPTER.cuts()]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as receiver:
            await send_stripe(receiver, accepted.staging_id, chunks[1:])
            await until(lambda: hashing.count == TENSORS - 2)
            await send_stripe(receiver, accepted.staging_id, chunks[:1])
        revision = await call.commit()
        assert hashing.count == TENSORS
    elsewhere = volume / "elsewhere"
    elsewhere.mkdir()
    async with serving(elsewhere) as sidecar:
        at_once, _ = await stage(sidecar.channel, ADAPTER)
    assert revision.digest == at_once.digest
