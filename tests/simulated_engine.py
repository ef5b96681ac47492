"""One engine pod of a simulated fleet: the sidecar's protocol over gRPC, its books, and no model.

The service, its messages, its errors and its chunk plan are the real ones. What is made up: a
revision's digest is the SHA-256 of the bytes that came, no byte is kept, a load takes
`Behaviour.load_seconds`, and nothing drains, for nothing is asked of the engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import grpc.aio
from lorafleet.errors import EngineRejected, LorafleetError, NameTaken, StagingFull, from_reason
from lorafleet.grpc_errors import abort
from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from lorafleet_sidecar.addressee import Addressee
from lorafleet_sidecar.changes import Changes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXTENT_BYTES: Final = 2 << 20
"""Extents of the arena are multiples of this, as the sidecar's are."""
_BASELINE_BYTES: Final = 1 << 30
_WATCH_PAUSE_SECONDS: Final = 0.05
_OPTIONS: Final = (("grpc.so_reuseport", 0),)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Behaviour:
    """How engines behave, and which faults to inject; may be changed while they run."""

    arena_bytes: int = 64 * EXTENT_BYTES
    load_seconds: float = 0.0
    loads_go_on: asyncio.Event = field(default_factory=_set_event)
    """While a test clears it, loads wait."""
    answer_seconds: float = 0.0
    """Time before each answer."""
    restore_seconds: float = 0.0
    """Time that each adapter takes to come back after a restart of vLLM."""
    growth_per_load: int = 0
    """Bytes of private memory that the engine grows by with each load."""
    refuse_loads: dict[str, str] = field(default_factory=dict)
    """Adapter -> reason (lorafleet.errors) of each of its loads' failure."""


@dataclass
class Books:
    """What the fleet's engines have counted together."""

    orders: int = 0
    """Requests that ask for a change, also where nothing had to be changed."""
    stagings: int = 0
    loads: int = 0
    unloads: int = 0
    overruns: list[str] = field(default_factory=list)
    """A line for each staging for which an arena had no room: the operator asked for too much."""
    fullest_bytes: int = 0
    """Most bytes that any arena held."""
    most_loaded: int = 0
    """Most revisions that any engine had loaded."""


class Silence(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets every call wait until it is `over`."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.over.set()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        await self.over.wait()
        return await continuation(details)


class SimulatedEngine(pb_grpc.SidecarServiceServicer):
    """One engine with its sidecar; `start` and `kill` may alternate, the arena outlives neither."""

    def __init__(
        self, pod_uid: str, address: str, profile: EngineProfile, behaviour: Behaviour, books: Books
    ) -> None:
        self.pod_uid = pod_uid
        self.address = address
        self.profile = profile
        self.behaviour = behaviour
        self.books = books
        self.staged: dict[str, pb.StagedRevision] = {}
        self.loaded: dict[tuple[str, str], pb.LoadedAdapter] = {}
        self.restarts: list[tuple[str, bool]] = []
        """Instances that were asked to end, and whether by force."""
        self.kept: dict[str, list[str]] = {}  # by served name
        self._lost: dict[tuple[str, str], pb.LoadedAdapter] = {}  # to come back after a restart
        self._reserved = 0
        self._silence = Silence()
        self._server: Any = None
        self._restoring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start an instance that has nothing."""
        self.instance = secrets.token_hex(8)
        self.staged, self.loaded, self._reserved, self._next_id = {}, {}, 0, 1
        self.load_count = 0
        self.kept, self._lost = {}, {}
        self._changes = Changes()
        self._server = grpc.aio.server(
            interceptors=[self._silence, Addressee(self.pod_uid)], options=_OPTIONS
        )
        pb_grpc.add_SidecarServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if not self._server.add_insecure_port(self.address):
            raise OSError(f"cannot listen at {self.address}")
        await self._server.start()

    async def kill(self) -> None:
        """End at once: every connection breaks."""
        server, self._server = self._server, None
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)
        if server is not None:
            await server.stop(None)

    def freeze(self) -> None:
        """Answer nobody any more; connections stay, as when a node hangs."""
        self._silence.over.clear()

    def thaw(self) -> None:
        """Answer again, also who still waits."""
        self._silence.over.set()
        self._changed()

    def serves(self, served_name: str) -> str:
        """Return the digest that answers to the name, "" if none does."""
        entries = self.loaded.values()
        return next((e.digest for e in entries if e.published and e.served_name == served_name), "")

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that revisions and transfers take."""
        return sum(each.size_bytes for each in self.staged.values()) + self._reserved

    def inventory(self) -> pb.Inventory:
        """Return what a sidecar observes of its pod."""
        in_use = {digest for _, digest in self.loaded}
        used, limit = self.used_bytes, self.behaviour.arena_bytes
        taken = sum(each.size_bytes for d, each in self.staged.items() if d in in_use)
        inventory = pb.Inventory(
            pod_uid=self.pod_uid,
            engine_instance=self.instance,
            health=pb.ENGINE_HEALTH_READY,
            loaded=self.loaded.values(),
            arena=pb.ArenaUsage(
                limit_bytes=limit,
                used_bytes=used - self._reserved,
                reserved_bytes=self._reserved,
                in_use_bytes=taken,
                largest_free_bytes=limit - taken - self._reserved,  # what is unused makes room
            ),
            max_loras=self.profile.max_loras,
            max_cpu_loras=self.profile.max_cpu_loras,
            max_lora_rank=self.profile.max_lora_rank,
            base_model=self.profile.base_model,
            sequence=self._changes.sequence,
        )
        inventory.workers.add(
            loads=self.load_count,
            private_host_bytes=_BASELINE_BYTES + self.load_count * self.behaviour.growth_per_load,
            baseline_host_bytes=_BASELINE_BYTES,
        )
        for digest, each in self.staged.items():
            inventory.staged.add().CopyFrom(each)
            inventory.staged[-1].in_use = digest in in_use
            inventory.staged[-1].kept = any(digest in each for each in self.kept.values())
        return inventory

    # The service.

    async def ListAdapters(self, request: Any, context: Any) -> pb.ListAdaptersResponse:  # noqa: N802 - gRPC's name
        await asyncio.sleep(self.behaviour.answer_seconds)
        return pb.ListAdaptersResponse(inventory=self.inventory())

    async def GetEngineProfile(self, request: Any, context: Any) -> pb.GetEngineProfileResponse:  # noqa: N802
        return pb.GetEngineProfileResponse(profile_json=self.profile.to_json())

    async def WatchEngine(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        while True:
            seen = self._changes.sequence
            yield pb.WatchEngineResponse(inventory=self.inventory())
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)
            await self._changes.wait(seen)
            await self._silence.over.wait()

    async def StageAdapter(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.books.orders += 1
        manifest = (await anext(requests)).manifest
        known = next(
            (e for e in self.staged.values() if e.fingerprint == manifest.fingerprint), None
        )
        if known is not None:
            yield pb.StageAdapterResponse(committed=known)
            return
        size = -(-manifest.data_bytes // EXTENT_BYTES) * EXTENT_BYTES
        try:
            self._reserve(size, manifest.adapter)
        except LorafleetError as error:
            await abort(context, error)
        try:
            header = parse_header(manifest.safetensors_header, manifest.data_bytes)
            plan = chunk_plan(header, manifest.chunk_bytes)
            content = hashlib.sha256(manifest.safetensors_header + manifest.adapter_config)
            yield pb.StageAdapterResponse(
                accepted=pb.StagingAccepted(staging_id="s", missing_chunks=range(len(plan)))
            )
            async for request in requests:
                if request.HasField("commit"):
                    break
                content.update(request.chunk.data)
            else:
                return  # broken off: what came is no revision
        finally:
            self._reserved -= size
        revision = pb.StagedRevision(
            digest="sha256:" + content.hexdigest(),
            fingerprint=manifest.fingerprint,
            size_bytes=size,
            rank=self.profile.max_lora_rank,
            adapter=manifest.adapter,
        )
        self.staged.setdefault(revision.digest, revision)
        self.books.stagings += 1
        self._changed()
        yield pb.StageAdapterResponse(committed=revision)

    async def LoadAdapter(  # noqa: N802
        self, request: pb.LoadAdapterRequest, context: Any
    ) -> pb.LoadAdapterResponse:
        self.books.orders += 1
        await asyncio.sleep(self.behaviour.load_seconds)
        await self.behaviour.loads_go_on.wait()
        try:
            return pb.LoadAdapterResponse(loaded=self._load(request))
        except LorafleetError as error:
            await abort(context, error)

    async def UnloadAdapter(  # noqa: N802
        self, request: pb.UnloadAdapterRequest, context: Any
    ) -> pb.UnloadAdapterResponse:
        self.books.orders += 1
        await asyncio.sleep(self.behaviour.answer_seconds)
        for key, entry in list(self.loaded.items()):
            if (entry.adapter, entry.served_name) == (request.adapter, request.served_name):
                del self.loaded[key]
                self.books.unloads += 1
        self._forget(request.served_name)
        self.kept.pop(request.served_name, None)
        if request.drop_staged:
            in_use = {digest for _, digest in self.loaded}
            for digest, revision in list(self.staged.items()):
                if revision.adapter == request.adapter and digest not in in_use:
                    del self.staged[digest]
        self._changed()
        return pb.UnloadAdapterResponse()

    async def RestartEngine(  # noqa: N802
        self, request: pb.RestartEngineRequest, context: Any
    ) -> pb.RestartEngineResponse:
        if request.engine_instance == self.instance:
            self.restarts.append((self.instance, request.force))
            self.restart_engine()
        return pb.RestartEngineResponse()

    def loaded_before(self, loads: int) -> None:
        """Say that vLLM has loaded so many adapters since its start."""
        self.load_count = loads
        self._changed()

    def restart_engine(self) -> None:
        """Start vLLM again beside the same sidecar, which will bring every name back."""
        self.instance = secrets.token_hex(8)
        self._lost, self.loaded, self.load_count = self._lost | self.loaded, {}, 0
        self._changed()
        if self._restoring is not None:
            self._restoring.cancel()
        self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        """Load what was loaded before, from the arena."""
        for key in list(self._lost):
            await asyncio.sleep(self.behaviour.restore_seconds)
            entry = self._lost.pop(key, None)
            if entry is not None:  # no order about its name has come meanwhile
                self.loaded[key] = entry
                self.load_count += 1
                self._changed()

    def _forget(self, served_name: str) -> None:
        """Bring nothing back under a name that an order was about since the restart."""
        self._lost = {key: each for key, each in self._lost.items() if key[0] != served_name}

    # The books.

    def _reserve(self, size: int, adapter: str) -> None:
        """Take `size` bytes of the arena; revisions that nobody has loaded make room."""
        in_use = {digest for _, digest in self.loaded}
        kept = {digest for each in self.kept.values() for digest in each}
        idle = [digest for digest in self.staged if digest not in in_use]
        for digest in sorted(idle, key=lambda digest: digest in kept):
            if self.used_bytes + size <= self.behaviour.arena_bytes:
                break
            del self.staged[digest]
        if self.used_bytes + size > self.behaviour.arena_bytes:
            line = f"{self.address}: no room for {adapter}: {self.used_bytes} bytes are in use"
            self.books.overruns.append(line)
            raise StagingFull(line)
        self._reserved += size

    def _load(self, request: pb.LoadAdapterRequest) -> pb.LoadedAdapter:
        if reason := self.behaviour.refuse_loads.get(request.adapter):
            raise from_reason(reason, f"{request.adapter}: refused as it was told to be")
        if request.digest not in self.staged:
            raise EngineRejected(f"{request.adapter}: {request.digest} is not staged here")
        others = [e for e in self.loaded.values() if e.served_name == request.served_name]
        if any(entry.adapter != request.adapter for entry in others):
            raise NameTaken(f"{request.served_name} belongs to {others[0].adapter}")
        key = (request.served_name, request.digest)
        if key not in self.loaded:
            self.loaded[key] = pb.LoadedAdapter(
                adapter=request.adapter,
                served_name=request.served_name,
                digest=request.digest,
                lora_int_id=self._next_id,
                tier=pb.TIER_HOST,
                loader=request.loader,
            )
            self._next_id += 1
            self.books.loads += 1
            self.load_count += 1
        entry = self.loaded[key]
        entry.pinned, entry.residency = request.pinned, request.residency
        before = {*self.kept.get(request.served_name, ()), *(other.digest for other in others)}
        self.kept[request.served_name] = list(request.keep)
        if request.publish:
            self._forget(request.served_name)
            entry.published = True
            for other in others:
                if other.digest != request.digest:
                    del self.loaded[other.served_name, other.digest]
        if request.free_others:
            in_use = {digest for _, digest in self.loaded} | set(request.keep)
            for digest in before - in_use:
                if digest in self.staged and self.staged[digest].adapter == request.adapter:
                    del self.staged[digest]
        self._changed()
        return entry

    def _changed(self) -> None:
        books = self.books
        books.fullest_bytes = max(books.fullest_bytes, self.used_bytes)
        books.most_loaded = max(books.most_loaded, len(self.loaded))
        self._changes.notify()


def profile_of(base_model: str, max_cpu_loras: int = 64) -> EngineProfile:
    """Return what each engine of a simulated fleet says that it takes."""
    plain = EngineProfile(base_model=base_model, dtype="bfloat16", max_lora_rank=8)
    return replace(plain, max_loras=8, max_cpu_loras=max_cpu_loras)
