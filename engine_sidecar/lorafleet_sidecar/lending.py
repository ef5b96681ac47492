"""Filling neighbours' arenas from this one: the source is not read, and not the operator's network.

What is sent is the canonical image, a complete adapter itself. The neighbours take it as any
other transfer, plan the same layout for it and compare the digest at their commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
from lorafleet import frames
from lorafleet.errors import EngineRejected, TransferInterrupted
from lorafleet.header import header_length, parse_header
from lorafleet.layout import chunk_plan
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.commit import IDENTITY
from lorafleet_sidecar.forwarding import Forwarding
from lorafleet_sidecar.paths import CONFIG

if TYPE_CHECKING:
    from lorafleet_sidecar.neighbour import Dialer
    from lorafleet_sidecar.staging import Stagings
    from lorafleet_sidecar.store import StagedRevisionInfo
    from lorafleet_sidecar.transfer_settings import TransferSettings

_LENGTH = 8  # of a safetensors file's length prefix


class Lender:
    """Sends revisions of one store. Belongs to the event loop's thread."""

    def __init__(self, stagings: Stagings, dialer: Dialer, settings: TransferSettings) -> None:
        self.sent_bytes = 0  # messages that neighbours took, since the start
        self._stagings = stagings
        self._dialer = dialer
        self._settings = settings

    async def send(self, request: pb.SendAdapterRequest) -> pb.ForwardReport:
        """Send a staged revision along a chain of neighbours; return what came of each.

        Raises TransferInterrupted for a revision that is not here, EngineRejected if this
        sidecar cannot tell neighbours from strangers.
        """
        if not self._dialer.may_dial:
            raise EngineRejected(
                "this sidecar has no name for its neighbours (LORAFLEET_PEER_NAME)"
            )
        run, store = self._stagings.run, self._stagings.store
        info = store.find(request.digest)
        if info is None:
            raise TransferInterrupted(
                f"adapter {request.adapter}: {request.digest} is not staged in this pod"
            )
        with store.lent(request.digest) as image:
            begin = _LENGTH + header_length(bytes(image[:_LENGTH]))
            header_text = bytes(image[_LENGTH:begin])
            manifest = self._manifest(request, info, header_text, len(image) - begin)
            header = await run(parse_header, manifest.safetensors_header, manifest.data_bytes)
            plan = await run(chunk_plan, header, manifest.chunk_bytes)
            forwarding = Forwarding(manifest, self._dialer, self._settings)
            try:
                for index in sorted(await forwarding.open()):
                    offset, length = plan[index]
                    with image[begin + offset : begin + offset + length] as piece:
                        message = await run(_chunk, offset, piece)
                    await forwarding.put(index, message)
                return await forwarding.finish()
            finally:
                self.sent_bytes += forwarding.passed_bytes
                await forwarding.close()

    def _manifest(
        self,
        request: pb.SendAdapterRequest,
        info: StagedRevisionInfo,
        header: bytes,
        data_bytes: int,
    ) -> pb.AdapterManifest:
        store = self._stagings.store
        return pb.AdapterManifest(
            adapter=request.adapter,
            fingerprint=request.fingerprint,
            safetensors_header=header,
            adapter_config=(store.revision_dir(request.digest) / CONFIG).read_bytes(),
            data_bytes=data_bytes,
            chunk_bytes=request.chunk_bytes,
            expected_digest=request.digest,
            allow_base_mismatch=request.allow_base_mismatch,
            adapter_name=request.adapter_name,
            drop_unmatched=request.drop_unmatched,
            forward_to=request.to,
            canonical=True,
            notes=[note for note in info.notes if note != IDENTITY],
        )


def _chunk(offset: int, piece: memoryview) -> bytes:
    checksum = google_crc32c.value(np.frombuffer(piece, np.uint8))
    return frames.encode_chunk(offset, checksum, piece)
