"""The way back: one `Inventory` of what is observed, and the board that watchers read it from."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.allocator import Allocator
from lorafleet_sidecar.changes import Changes
from lorafleet_sidecar.desired import GPU
from lorafleet_sidecar.observed import Health

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from lorafleet_sidecar.desired import Desired
    from lorafleet_sidecar.observed import EngineRevision, EngineState, ObservedEngine
    from lorafleet_sidecar.store import RevisionStore

# Memory figures wander all the time; watchers hear of them in steps of this many bytes.
_MEMORY_STEP = 64 << 20
_WANDERING = (
    "resident_host_bytes",
    "private_host_bytes",
    "torch_allocated_bytes",
    "torch_reserved_bytes",
)


def loaded_adapter(
    revision: EngineRevision, state: EngineState, desired: Desired
) -> pb.LoadedAdapter:
    """Return the wire form of one revision of ours that the engine holds."""
    name = desired.names.get(revision.served_name)
    published = state.served.get(revision.served_name) == revision.lora_int_id
    wanted = name is not None and any(
        target.digest == revision.digest and revision.loader in (target.loader, "stock")
        for target in name.targets()
    )
    unproved = not published and not (revision.verified and desired.loading != revision.digest)
    return pb.LoadedAdapter(
        adapter=name.adapter if name else "",
        served_name=revision.served_name,
        digest=revision.digest,
        lora_int_id=revision.lora_int_id,
        tier=state.tier(revision.lora_int_id),
        published=published,
        in_flight=revision.in_flight,
        pinned=revision.residency == GPU,
        # The engine hears of it when the proof is over; until then whoever asks what the load was for
        # took it for another's.
        residency=name.residency if name and wanted and unproved else revision.residency,
        idle_seconds=revision.idle_seconds,
        loader=revision.loader,
        draining=not wanted,
        unproved=unproved,
        requests=revision.requests,
        errors=revision.errors,
    )


def build_inventory(
    pod_uid: str,
    engine: ObservedEngine,
    store: RevisionStore,
    desired: Desired,
    *,
    forwards: bool = False,
    requested: Iterable[str] = (),
) -> pb.Inventory:
    """Return everything that this sidecar knows of its pod (without a sequence)."""
    usage, kept = store.usage(), desired.kept()
    inventory = pb.Inventory(
        pod_uid=pod_uid,
        engine_instance=engine.instance,
        health=engine.health.value,
        health_message=engine.message,
        plugin_message=engine.plugin_message,
        forwards=forwards,
        reuses=True,
        requested=requested,
        staged=[
            pb.StagedRevision(
                digest=each.digest,
                fingerprint=each.fingerprint,
                size_bytes=each.size_bytes,
                rank=each.rank,
                adapter=each.adapter,
                notes=each.notes,
                in_use=each.in_use,
                kept=each.digest in kept,
            )
            for each in store.revisions()
        ],
        arena=pb.ArenaUsage(
            limit_bytes=usage.limit,
            used_bytes=usage.used,
            reserved_bytes=usage.reserved,
            in_use_bytes=usage.in_use,
            largest_free_bytes=_largest_piece(store) if store.broken else usage.largest_free,
        ),
    )
    if engine.profile is not None:
        inventory.base_model = engine.profile.base_model
        inventory.max_loras = engine.profile.max_loras
        inventory.max_cpu_loras = engine.profile.max_cpu_loras
        inventory.max_lora_rank = engine.profile.max_lora_rank
    elif engine.base_models:
        inventory.base_model = engine.base_models[0]
    if engine.state is not None:
        inventory.loaded.extend(
            loaded_adapter(each, engine.state, desired)
            for each in engine.state.revisions.values()
            if each.digest
        )
        inventory.workers.extend(each.memory for each in engine.state.workers)
        inventory.loaded.extend(_asleep(engine, desired))
    if engine.health is Health.STOCK:
        inventory.loaded.extend(_prepared_files(store, desired))
    return inventory


def _largest_piece(store: RevisionStore) -> int:
    """Return the bytes that a transfer finds in one piece once what broken ones left has given way."""
    broken = {each.extent for each in store.stagings() if each.staging_id in store.broken}
    taken = (extent for extent in store.extents() if extent not in broken)
    return Allocator(store.usage().limit, taken).largest_free()


def _asleep(engine: ObservedEngine, desired: Desired) -> Iterator[pb.LoadedAdapter]:
    """Yield the names that the engine has nothing of until a request asks for them."""
    assert engine.state is not None
    if engine.health is not Health.READY:
        return
    for name in desired.names.values():
        if name.on_demand and not name.removing and not engine.state.has_any(name.served_name):
            for target in dict.fromkeys((name.goal, name.coming)):
                if target is None:
                    continue
                yield pb.LoadedAdapter(
                    adapter=name.adapter,
                    served_name=name.served_name,
                    digest=target.digest,
                    tier=pb.TIER_STAGED,
                    published=target == name.goal,
                    loader=target.loader,
                    residency=name.residency,
                )


def _prepared_files(store: RevisionStore, desired: Desired) -> Iterator[pb.LoadedAdapter]:
    """Yield what a stock engine can only have prepared: plain files beside the served revision."""
    exported = set(store.plain_exports())
    for name in desired.names.values():
        if name.coming is None or name.publish_coming or name.coming.digest not in exported:
            continue
        yield pb.LoadedAdapter(
            adapter=name.adapter,
            served_name=name.served_name,
            digest=name.coming.digest,
            tier=pb.TIER_STAGED,
            loader="stock",
        )


def significant(inventory: pb.Inventory) -> bytes:
    """Return what makes an inventory worth sending: equal bytes mean nothing to tell.

    Left out is what changes with every request: how many there were, the exact number in flight of
    a revision that nobody waits for, and small steps of memory.
    """
    reduced = pb.Inventory()
    reduced.CopyFrom(inventory)
    reduced.sequence = 0
    for loaded in reduced.loaded:
        loaded.requests = loaded.errors = 0
        loaded.idle_seconds = 0
        if not loaded.draining:
            loaded.in_flight = min(loaded.in_flight, 1)
    for worker in reduced.workers:
        worker.seconds.clear()
        for field in _WANDERING:
            setattr(worker, field, getattr(worker, field) // _MEMORY_STEP)
    return reduced.SerializeToString(deterministic=True)


class InventoryBoard:
    """Holds the newest inventory; watchers wait for the next one that differs.

    The sequence starts at the wall clock in milliseconds, so that it also grows over a restart
    of the sidecar.
    """

    def __init__(self) -> None:
        self.watchers = 0
        """How many of the streams that the operator listens to are open."""
        self._changes = Changes()
        self._sequence = time.time_ns() // 1_000_000
        self._significant: bytes | None = None
        self._current = pb.Inventory(
            health=pb.ENGINE_HEALTH_STARTING,
            health_message="sidecar has not looked at the engine yet",
            sequence=self._sequence,
        )

    @property
    def current(self) -> pb.Inventory:
        """Return the newest inventory; never changed after it is set."""
        return self._current

    def post(self, inventory: pb.Inventory) -> bool:
        """Make `inventory` the newest; return whether watchers are told."""
        key = significant(inventory)
        told = key != self._significant
        if told:
            self._sequence += 1
            self._significant = key
        inventory.sequence = self._sequence
        self._current = inventory
        if told:
            self._changes.notify()
        return told

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count one more watcher for as long as the block runs."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    async def watch(self) -> AsyncIterator[pb.Inventory]:
        """Yield the inventory now, and again each time it changes; slow readers skip some."""
        while True:
            seen = self._changes.sequence
            yield self._current
            await self._changes.wait(seen)
