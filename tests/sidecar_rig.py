"""A real sidecar in this process beside a fake engine, and a real gRPC client of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
import httpx
from fake_engine import Behaviour, FakeEngine
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from lorafleet_sidecar.index import RevisionEntry
from lorafleet_sidecar.server import Sidecar
from lorafleet_sidecar.settings import SidecarSettings
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.store import RevisionStore

ARENA_BYTES = 64 << 20
MIB = 1 << 20


def digest_of(seed: int) -> str:
    """A digest that only `seed` has."""
    return "sha256:" + hashlib.sha256(str(seed).encode()).hexdigest()


def put_revision(store: RevisionStore, seed: int, adapter: str = "team-a/sql") -> str:
    """Commit a made-up revision as a finished transfer does; return its digest."""
    digest = digest_of(seed)
    fingerprint = f"test:{seed}"
    entry = store.reserve(fingerprint, MIB, lambda _entry: None)
    folder = store.volume / "revisions" / digest.removeprefix("sha256:")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (folder / "revision.json").write_text(json.dumps({"format": 1, "digest": digest}))
    store.commit(
        entry.staging_id,
        RevisionEntry(digest, entry.extent, MIB // 2, 8, adapter, (), {fingerprint: "layout"}),
    )
    return digest


class Rig:
    """Sidecar, engine and client; `async with` starts and ends all three."""

    def __init__(self, volume: Path, behaviour: Behaviour | None = None, **settings: Any) -> None:
        self.volume = volume
        self.engine = FakeEngine(volume, behaviour)
        self._settings = settings
        self._requests: set[asyncio.Task[str]] = set()

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.start_sidecar()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.engine.release()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.stop_sidecar()
        await self.engine.kill()

    async def start_sidecar(self) -> None:
        """Start a sidecar on the volume as it is."""
        values = {
            "volume": self.volume,
            "arena_bytes": ARENA_BYTES,
            "pod_uid": "pod-1",
            "listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "engine_url": self.engine.url,
            "refresh_seconds": 0.02,
            "drain_timeout_seconds": 5,
            **self._settings,
        }
        self.sidecar = Sidecar(SidecarSettings(**values), stock_grace_seconds=0.05)
        await self.sidecar.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.sidecar.port}")
        self.stub = pb_grpc.SidecarServiceStub(self.channel)  # type: ignore[no-untyped-call]

    async def stop_sidecar(self) -> None:
        """Stop the sidecar; the volume stays."""
        await self.channel.close()
        await self.sidecar.stop()

    def put(self, seed: int, adapter: str = "team-a/sql") -> str:
        """Stage a made-up revision."""
        return put_revision(self.sidecar.store, seed, adapter)

    async def load(
        self, digest: str, served_name: str = "team-a/sql", **fields: Any
    ) -> pb.LoadedAdapter:
        """Call LoadAdapter, publishing unless told otherwise; the owner is the name by default."""
        values = {"adapter": served_name, "publish": True, "loader": "direct", **fields}
        request = pb.LoadAdapterRequest(served_name=served_name, digest=digest, **values)
        return (await self.stub.LoadAdapter(request)).loaded

    async def unload(self, served_name: str = "team-a/sql", **fields: Any) -> None:
        """Call UnloadAdapter; the owner is the name by default."""
        values = {"adapter": served_name, **fields}
        await self.stub.UnloadAdapter(pb.UnloadAdapterRequest(served_name=served_name, **values))

    async def inventory(self) -> pb.Inventory:
        """Call ListAdapters."""
        return (await self.stub.ListAdapters(pb.ListAdaptersRequest())).inventory

    async def answer(self, model: str, **fields: Any) -> str:
        """Ask the engine as a user does; the text tells which revision answered."""
        response = await self._completion(model, **fields)
        response.raise_for_status()
        return str(response.json()["choices"][0]["text"])

    async def ask(self, model: str) -> tuple[int, str]:
        """Return the status and the text or the error's line of one request."""
        response = await self._completion(model)
        answer = response.json()
        if response.is_success:
            return 200, str(answer["choices"][0]["text"])
        return response.status_code, str(answer["error"]["message"])

    async def _completion(self, model: str, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=self.engine.url, trust_env=False, verify=False
        ) as client:
            body = {"model": model, "prompt": "x", **fields}
            return await client.post("/v1/completions", json=body, timeout=60)

    async def held_request(self, model: str) -> asyncio.Task[str]:
        """Start a request that runs until `engine.release()`, and wait until the engine has it."""
        before = self._in_flight()
        task = asyncio.create_task(self.answer(model, hold=True))
        self._requests.add(task)
        await until(lambda: self._in_flight() > before)
        return task

    def _in_flight(self) -> int:
        revisions = [*self.engine.revisions.values(), *self.engine.stock.values()]
        return sum(each.in_flight for each in revisions)
