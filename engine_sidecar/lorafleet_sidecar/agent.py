"""One engine, one operation at a time: loads, switches and unloads as the operator asks.

An operation first makes its wish durable (`desired.py`), then brings the engine there
(`live_engine.py`, `stock_engine.py`). Whatever ends it halfway, `restore.py` finishes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import (
    BaseModelMismatch,
    EngineRejected,
    EngineUnreachable,
    LorafleetError,
)

from lorafleet_sidecar.counters import AgentCounters
from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.desired import ON_DEMAND, ServedName, accepted
from lorafleet_sidecar.earlier import drop_staged, free_replaced
from lorafleet_sidecar.inventory import InventoryBoard, build_inventory
from lorafleet_sidecar.live_engine import LiveEngine
from lorafleet_sidecar.observed import Health, ObservedEngine
from lorafleet_sidecar.profile_cache import ProfileCache
from lorafleet_sidecar.stock_engine import StockEngine
from lorafleet_sidecar.wishes import check_wish, refuse_quarantined

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lorafleet.v1alpha1 import sidecar_pb2 as pb

    from lorafleet_sidecar.desired import Desired, LoadWish
    from lorafleet_sidecar.engine import EngineClient
    from lorafleet_sidecar.settings import SidecarSettings
    from lorafleet_sidecar.store import RevisionStore

log = logging.getLogger(__name__)

_DRAIN_POLL_SECONDS = (0.02, 0.5)  # first and longest pause between two looks at a drain
_T = TypeVar("_T")


class Agent:
    """Drives one engine. All methods belong to the event loop's thread."""

    def __init__(
        self,
        engine: EngineClient,
        store: RevisionStore,
        desired: Desired,
        settings: SidecarSettings,
    ) -> None:
        self.engine = engine
        self.store = store
        self.desired = desired
        self.board = InventoryBoard()
        self.counters = AgentCounters()
        self.profiles = ProfileCache(settings.profile_path)
        self.observed = ObservedEngine(Health.STARTING, "sidecar has not looked at the engine yet")
        self.requested: tuple[str, ...] = ()  # names that requests wait for, of nobody here
        self.turn = asyncio.Lock()  # first come, first served
        self._live = LiveEngine(engine, desired, settings.drain_timeout_seconds)
        self._stock = StockEngine(engine, desired, store, settings.drain_timeout_seconds)
        self._pod_uid = settings.pod_uid
        self._forwards = settings.forwards
        self._looking = asyncio.Lock()
        self._operations: set[asyncio.Task[object]] = set()
        self._engine_reads: set[str] | None = None  # digests, when last seen

    # The two operations

    async def load(self, wish: LoadWish) -> pb.LoadedAdapter:
        """Load a staged revision and, if asked, move the served name to it.

        Idempotent by (served name, digest, loader). Goes on when the caller is cancelled. A
        previous revision on which requests still run after `drain_seconds` is left draining; it
        is unloaded as soon as the last one ends.
        """
        return await self._run("load", self._load(wish))

    async def unload(
        self,
        adapter: str,
        served_name: str,
        *,
        drain_seconds: float,
        drop_staged: bool,
        abort_seconds: int | None = None,
    ) -> None:
        """Hide the name, wait for its requests, unload its revisions, free their space if asked.

        Idempotent; a name that another adapter owns is left alone. Raises EngineRejected while
        requests still run after `drain_seconds`: the name is hidden and the rest follows.
        """
        steps = self._unload(adapter, served_name, drain_seconds, drop_staged, abort_seconds)
        await self._run("unload", steps)

    async def awaken(self, served_name: str) -> None:
        """Load and publish what a name means that was left until a request asks for it.

        Does nothing for a name that nobody has asked for, or that is going. Raises as `load`.
        """
        await self._run("awaken", self._awaken(served_name))

    # What restore.py and the service use too

    async def look(self) -> ObservedEngine:
        """Observe the engine, keep what it may read, and post the inventory."""
        async with self._looking:
            observed = await self.engine.observe()
            if observed.instance and observed.instance != self.observed.instance:
                log.info("engine instance %s: %s", observed.instance, observed.health.name)
                self.counters.engine_starts += 1
            self.observed = observed
            self._settle_death(observed)
            await self.profiles.keep(observed.profile)
            self._free_replaced()
            self.post()
            return observed

    def _free_replaced(self, *also: str) -> None:
        """Free what was unloaded because another revision took its name, unless it is kept."""
        self.hold()
        free_replaced(self.store, self.desired, {*self._live.replaced, *also})
        self._live.replaced = set()

    def post(self) -> None:
        """Post the inventory of the last look and of the arena as it is now."""
        self.board.post(
            build_inventory(
                self._pod_uid,
                self.observed,
                self.store,
                self.desired,
                forwards=self._forwards,
                requested=self.requested,
            )
        )

    def hold(self) -> None:
        """Tell the arena what the engine may read: all that is wanted or was loaded when last seen.

        Before the first sight of the engine the arena keeps everything by itself.
        """
        if self.observed.state is not None:
            self._engine_reads = {
                each.digest for each in self.observed.state.revisions.values() if each.digest
            }
        if self._engine_reads is not None:
            self.store.set_holds(self.desired.digests() | self._engine_reads)
        self.store.kept = self.desired.kept()

    def steps(self, observed: ObservedEngine) -> LiveEngine | StockEngine:
        """Return the way to drive the engine as it was observed. Raises if there is none."""
        if observed.health is Health.READY:
            return self._live
        if observed.health is Health.STOCK:
            return self._stock
        if observed.health is Health.REFUSED:
            raise EngineRejected(observed.message)
        raise EngineUnreachable(observed.message)

    async def bring_up(self, served_name: str) -> None:
        """Bring one name to what is desired; the caller has the turn.

        A coming revision that the engine refuses is given up, so that the old one stays.
        Raises BaseModelMismatch when vLLM has come back with another base model: whether the
        adapter fits that one is not for us to say.
        """
        name = self.desired.names[served_name]
        bases = self.observed.base_models
        if name.base_model and bases and name.base_model not in bases:
            raise BaseModelMismatch(
                f"adapter {name.adapter}: {served_name} was loaded for {name.base_model}, the "
                f"engine serves {bases[0]} now"
            )
        try:
            for target, _publish in name.steps:
                refuse_quarantined(target.digest, self.desired)
            await self.steps(self.observed).bring_up(served_name)
        except EngineRejected as error:
            self.desired.settle_load(self.desired.loading)
            self.desired.give_up_coming(served_name)
            raise EngineRejected(f"adapter {name.adapter}: {error}") from error

    async def finish_removal(self, served_name: str) -> bool:
        """Hide, unload and forget a name marked for removal; the caller has the turn.

        Returns False while requests still run on one of its revisions.
        """
        steps = self.steps(self.observed)
        state = self.observed.state
        if state is None or served_name in state.served:
            await steps.hide(served_name)
            crash_at("unload.unpublished")
        if await steps.sweep(served_name):
            return False
        await self.look()
        name = self.desired.names[served_name]
        if name.drop_staged:
            self._drop_staged(name)
        self.desired.forget(served_name)
        self.desired.forgive(t.digest for t in (name.current, name.coming) if t is not None)
        self.hold()
        return True

    async def close(self) -> None:
        """Stop operations in progress; the next start finishes them."""
        for task in tuple(self._operations):
            task.cancel()
        await asyncio.gather(*self._operations, return_exceptions=True)

    # Inside

    async def _load(self, wish: LoadWish) -> pb.LoadedAdapter:
        async with self.turn:
            observed = await self.look()
            check_wish(wish, self.observed, self.desired, self.store)
            self.steps(observed)  # raises for an engine that takes nothing now
            self._accept(wish)
            self.store.hold(wish.digest)
            crash_at("load.held")
            try:
                if not self._asleep(wish):
                    await self.bring_up(wish.served_name)
            finally:
                await self.look()
        if wish.publish:
            await self._drain(wish.served_name, wish.drain_seconds)
        return self._loaded(wish)

    async def _awaken(self, served_name: str) -> None:
        async with self.turn:
            await self.look()
            name = self.desired.names.get(served_name)
            if name is not None and not name.removing:
                try:
                    await self.bring_up(served_name)
                finally:
                    await self.look()

    async def _unload(
        self,
        adapter: str,
        served_name: str,
        drain_seconds: float,
        drop_staged: bool,
        abort_seconds: int | None,
    ) -> None:
        async with self.turn:
            name = self.desired.names.get(served_name)
            if name is None or name.adapter not in ("", adapter):
                if drop_staged:
                    self._drop_staged(ServedName(served_name, adapter))
                    self.post()
                return
            self.desired.update(
                served_name, removing=True, drop_staged=drop_staged, abort_seconds=abort_seconds
            )
            await self.look()
            done = await self.finish_removal(served_name)
            await self.look()
        deadline = time.monotonic() + drain_seconds
        pause, longest = _DRAIN_POLL_SECONDS
        while not done:
            if time.monotonic() >= deadline:
                raise EngineRejected(
                    f"served name {served_name} is hidden, but {self._in_flight(served_name)} "
                    f"requests still run on it after {drain_seconds:g} s"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            async with self.turn:
                name = self.desired.names.get(served_name)
                if name is None or not name.removing:
                    return  # finished by the restore loop, or taken back by a new load
                done = await self.finish_removal(served_name)
                await self.look()

    async def _drain(self, served_name: str, seconds: float) -> None:
        """Wait until replaced revisions of the name are unloaded, at most `seconds`."""
        deadline = time.monotonic() + seconds
        pause, longest = _DRAIN_POLL_SECONDS
        while True:
            async with self.turn:
                remaining = await self.steps(self.observed).sweep(served_name)
                await self.look()
            if not remaining or time.monotonic() >= deadline:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    def _settle_death(self, observed: ObservedEngine) -> None:
        """Hold it against a revision if the engine that loaded it is not the one that answers."""
        desired = self.desired
        if not desired.loading or not observed.instance:
            return
        if observed.instance != desired.loading_instance:
            log.warning("the engine died while it loaded %s", desired.loading)
            self.counters.engine_deaths += 1
            desired.settle_load(desired.loading, died=True)

    def _accept(self, wish: LoadWish) -> None:
        """Make the wish durable. What the name points at now stays until the new one is proved."""
        old = self.desired.names.get(wish.served_name)
        base = next(iter(self.observed.base_models), "")
        name = accepted(wish, old, base, asleep=self._asleep(wish))
        if name != old:
            self.desired.put(name)
        if old is not None and set(old.keep) - set(wish.keep):
            self._free_replaced(*old.keep)

    def _asleep(self, wish: LoadWish) -> bool:
        """Whether a request has to come first: nothing of the name is in the engine."""
        observed = self.observed
        if wish.residency != ON_DEMAND or observed.health is not Health.READY:
            return False
        return observed.state is not None and not observed.state.has_any(wish.served_name)

    def _drop_staged(self, name: ServedName) -> None:
        self.hold()
        drop_staged(self.store, self.desired, name)

    def _loaded(self, wish: LoadWish) -> pb.LoadedAdapter:
        for each in self.board.current.loaded:
            if (each.served_name, each.digest) == (wish.served_name, wish.digest):
                return each
        raise EngineUnreachable(
            f"adapter {wish.adapter}: engine was replaced while {wish.served_name} was loaded"
        )

    def _in_flight(self, served_name: str) -> int:
        return sum(
            each.in_flight for each in self.board.current.loaded if each.served_name == served_name
        )

    async def _run(self, operation: str, steps: Coroutine[object, object, _T]) -> _T:
        """Run one operation to its end even if the caller goes away."""
        task = asyncio.ensure_future(self._counted(operation, steps))
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        # A caller that went away does not fetch the outcome; the counters and the log have it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _counted(self, operation: str, steps: Coroutine[object, object, _T]) -> _T:
        started = time.monotonic()
        outcome = "ok"
        try:
            return await steps
        except LorafleetError as error:
            outcome = error.reason
            log.warning("%s failed: %s", operation, error)
            raise
        except BaseException as error:
            outcome = "Cancelled" if isinstance(error, asyncio.CancelledError) else "InternalError"
            raise
        finally:
            self.counters.finished(operation, outcome, time.monotonic() - started)
