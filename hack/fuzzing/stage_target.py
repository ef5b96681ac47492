"""Sequences of messages to the real servicer of StageAdapter and SendChunks, without the network.

The only thing of ours here is the gRPC context: it hands out the input's messages and takes the
answers. A part begins with the stream that it goes to (0 StageAdapter, 1 SendChunks, told once the
transfer was accepted); 32 times @ in a stripe's message stand for the staging id.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import grpc
import grpc.aio
from lorafleet import frames
from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet.profile import EngineProfile, LoraModule
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.store import RevisionStore
from lorafleet_sidecar.transfer_service import TransferService, TransferSettings

from fuzzing import mutate, parts, seeds

if TYPE_CHECKING:
    from random import Random

_CHUNK = 64 << 10
_WIDTH = 1024
_ARENA = 4 << 20
_STAGING_ID = "@" * 32
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class _Aborted(Exception):
    """The call ended with a status, as grpc.aio's own exception says it."""


class _Stripe:
    """The context of one SendChunks call."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        """Return the next message or EOF."""
        return next(self._messages, _EOF)

    async def abort(self, code: grpc.StatusCode, line: str, _trailing: object) -> None:
        """End the call; a fault of the sidecar's own is a finding."""
        assert code is not grpc.StatusCode.INTERNAL, line
        raise _Aborted(line)


class _Transfer(_Stripe):
    """The context of the StageAdapter call; runs stripes where the input has them."""

    def __init__(self, service: TransferService, messages: list[bytes]) -> None:
        super().__init__([])
        self._service = service
        self._queue = messages
        self._accepted = asyncio.Event()
        self._staging_id = b""

    async def read(self) -> Any:
        """Return the next message of this stream, after the stripes before it."""
        stripe = []
        while self._queue and self._queue[0][:1] == b"\x01":
            stripe.append(self._queue.pop(0)[1:])
        if stripe:
            await self._accepted.wait()
            told = [message.replace(_STAGING_ID.encode(), self._staging_id) for message in stripe]
            with contextlib.suppress(_Aborted):
                await self._service.send_chunks(None, _Stripe(told))
        return self._queue.pop(0)[1:] if self._queue else _EOF

    async def write(self, response: pb.StageAdapterResponse) -> None:
        """Take an answer."""
        self._staging_id = response.accepted.staging_id.encode()
        self._accepted.set()


class Stage:
    """The servicer on a volume of its own, emptied after each input."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._volume = tempfile.mkdtemp(prefix="lorafleet-fuzz-", dir="/dev/shm")
        self._store = RevisionStore.open(Path(self._volume), _ARENA)
        self._store.set_holds(())
        settings = TransferSettings(stall_seconds=0.05)
        self._service = self._runner.run(self._serve(settings))

    async def _serve(self, settings: TransferSettings) -> TransferService:
        return TransferService(self._store, _profile, settings)

    def close(self) -> None:
        """End the servicer and remove its volume."""
        self._runner.run(self._service.close())
        self._runner.close()
        self._store.close()
        shutil.rmtree(self._volume)

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return the messages of one transfer; manifest, chunks, their order or bytes changed."""
        header, config = seeds.header(_tensors()), seeds.config(random)
        data = random.randbytes(64) * (_size() // 64)
        data = bytes(len(data)) if valid or random.random() < 0.5 else _finite(data)
        manifest = pb.AdapterManifest(
            adapter="team-a/fuzz",
            fingerprint="fuzz",
            safetensors_header=header,
            adapter_config=config,
            data_bytes=len(data),
            chunk_bytes=_CHUNK,
        )
        cuts = chunk_plan(parse_header(header), _CHUNK)
        if not valid and random.random() < 0.3:
            _change(random, manifest)
        messages = [b"\x00" + frames.encode_manifest(manifest.SerializeToString())]
        striped = random.random() < 0.3
        field = frames.SEND_CHUNK_FIELD if striped else frames.STAGE_CHUNK_FIELD
        lead = b"\x01" if striped else b"\x00"
        if striped:
            messages.append(lead + frames.encode_staging_id(_STAGING_ID))
        for offset, length in cuts:
            piece = data[offset : offset + length]
            messages.append(
                lead + frames.encode_chunk(offset, google_crc32c.value(piece), piece, field)
            )
        messages.append(b"\x00" + frames.encode_commit())
        return parts.join(messages if valid else _disturbed(random, messages))

    def run(self, data: bytes) -> bool:
        """Play the input, then check that nothing is leaked and make the store empty."""
        messages = [part for part in parts.split(data) if part]
        return self._runner.run(self._play(messages))

    async def _play(self, messages: list[bytes]) -> bool:
        try:
            with contextlib.suppress(_Aborted):
                await self._service.stage_adapter(None, _Transfer(self._service, messages))
            store = self._store
            committed = bool(store.revisions())
            usage = store.usage()
            assert usage.used + usage.reserved == sum(extent.size for extent in store.extents())
            return committed
        finally:
            for entry in self._store.stagings():
                self._store.discard(entry.staging_id)
            for revision in self._store.revisions():
                self._store.drop(revision.digest)
            assert self._store.extents() == [], "a transfer leaves arena space behind"


def _profile() -> EngineProfile:
    modules = tuple(
        LoraModule(f"model.layers.0.self_attn.{part}", _WIDTH, _WIDTH)
        for part in ("q_proj", "v_proj")
    )
    return EngineProfile(seeds.BASE, dtype="bfloat16", max_lora_rank=64, modules=modules)


def _tensors() -> list[seeds.Entry]:
    found: list[seeds.Entry] = []
    for part in ("q_proj", "v_proj"):
        name = f"{seeds.PREFIX}model.layers.0.self_attn.{part}"
        found.append((f"{name}.lora_A.weight", "F32", (seeds.RANK, _WIDTH)))
        found.append((f"{name}.lora_B.weight", "F32", (_WIDTH, seeds.RANK)))
    return found


def _size() -> int:
    return 4 * seeds.RANK * _WIDTH * 4


def _finite(data: bytes) -> bytes:
    """Return float32 values with small exponents; other bits as they are."""
    out = bytearray(data)
    out[3::4] = bytes([0x3F]) * len(out[3::4])
    return bytes(out)


def _change(random: Random, manifest: pb.AdapterManifest) -> None:
    action = random.randrange(7)
    if action == 0:
        manifest.safetensors_header = mutate.text(random, manifest.safetensors_header, [])
    elif action == 1:
        manifest.safetensors_header = seeds.header(seeds.changed(random, _tensors()))
    elif action == 2:
        manifest.adapter_config = mutate.text(random, manifest.adapter_config, [])
    elif action == 3:
        manifest.data_bytes = random.choice([0, 1, manifest.data_bytes + 1, (1 << 64) - 1, 1 << 40])
    elif action == 4:
        manifest.chunk_bytes = random.choice([0, 1, _CHUNK + 1, 1 << 20, 16 << 20, (1 << 32) - 1])
    elif action == 5:
        manifest.expected_digest = random.choice(["", "sha256:", "sha256:" + "0" * 64, "x" * 5000])
    else:
        name = random.choice(["adapter", "fingerprint", "adapter_name", "drop_unmatched"])
        setattr(manifest, name, random.choice(["", "tower", "a" * 1025, "\n", "../..", "\u202e"]))


def _disturbed(random: Random, messages: list[bytes]) -> list[bytes]:
    out = list(messages)
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        at = random.randrange(len(out)) if out else 0
        action = random.randrange(7)
        if not out or action == 0:
            out.insert(at, random.choice([b"\x00", b"\x01", b"\x00" + frames.encode_commit()]))
        elif action == 1:
            del out[at]
        elif action == 2:
            out.insert(random.randrange(len(out)), out[at])
        elif action == 3:
            out.insert(random.randrange(len(out)), out.pop(at))
        elif action == 4:
            out[at] = bytes([out[at][0] ^ 1]) + out[at][1:]
        elif action == 5:
            out[at] = out[at][:1] + mutate.noise(random, out[at][1:])
        else:
            del out[at + 1 :]
    return out
