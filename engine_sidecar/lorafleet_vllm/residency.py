"""Which of our adapters one worker holds, and how one gets in, back in, and out.

Called from the patched methods of vLLM's LoRA managers, in the worker's only thread. A failure
leaves nothing half-registered: the new id is gone, its slot empty, all others are as they were.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import EngineRejected, LorafleetError

from lorafleet_vllm import device_loader, direct, inventory
from lorafleet_vllm.arena_map import Arena
from lorafleet_vllm.background import Background
from lorafleet_vllm.fills import SlotFills
from lorafleet_vllm.host_store import HostStore
from lorafleet_vllm.keeping import GPU, ON_DEMAND, OWN_PLACE, SHARED, keep, let_go_first
from lorafleet_vllm.offload import offload
from lorafleet_vllm.parts import exhaust
from lorafleet_vllm.rebuild import entry_of, rebuild
from lorafleet_vllm.revision import Revision, read_revision
from lorafleet_vllm.settings import RevisionPath, Volume, offload_budget
from lorafleet_vllm.slot_plan import Limits, empty_plan
from lorafleet_vllm.stats import WorkerStats
from lorafleet_vllm.targets import read_targets
from lorafleet_vllm.warm import warm

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from vllm.lora.lora_model import LoRAModel

    from lorafleet_vllm.device_loader import DeviceModule

_log = logging.getLogger("vllm.lorafleet")


@dataclass
class Known:
    """An adapter of ours from its first load to its unload, resident or not.

    `model` (of `direct`) is only views and a plan: a rebuild reads no file and cannot fail.
    """

    name: str
    path: RevisionPath
    revision: Revision | None
    model: direct.DirectModel | None = None
    residency: str = SHARED


class Residency:
    """Our adapters in one worker; `manager` is its LoRAModelManager."""

    def __init__(self, volume: Volume, manager: Any) -> None:
        self.volume = volume
        self.manager = manager
        self.device = torch.device(manager.device)
        self.arena = Arena(volume.arena, cuda=self.device.type == "cuda")
        self.arena.prepare()
        self.targets = read_targets(manager)
        self.limits = Limits.of(manager)
        self.stats = WorkerStats()
        self.fills = SlotFills(self.device)
        self._reader = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        budget = volume.arena.stat().st_size if volume.arena.exists() else 0
        self.store = HostStore(offload_budget(default=budget))
        self.known: dict[int, Known] = {}
        self.used: frozenset[int] = frozenset()  # by the step that is coming
        self.in_step = False
        self.in_parts = False  # whoever drives gives fills their time
        self.background = Background(self)
        warm(self.device, manager.lora_config.lora_dtype)

    def is_ours(self, request: Any) -> bool:
        """Whether `request` (a LoRARequest) names a revision on our volume."""
        return self.volume.revision_of(request.lora_path) is not None

    def check_foreign(self, request: Any) -> None:
        """Raise EngineRejected if a stock request claims the id of an adapter of ours.

        vLLM's own in-place reload of a name that is published by us would do that.
        """
        known = self.known.get(request.lora_int_id)
        if known is not None:
            raise EngineRejected(
                f"adapter {request.lora_name}: id {request.lora_int_id} is {known.name}'s, "
                "which cannot be replaced in place"
            )

    # -- in -----------------------------------------------------------------------------------

    def add(self, request: Any, staged: Sequence[DeviceModule] = ()) -> bool:
        """Make the adapter of `request` resident at once; True as vLLM's add_adapter has it.

        Inside a step it also gets a slot. Outside it gets one only if one is free: nobody's slot
        is taken before a request needs it. `staged` are tensors born on the device, for an adapter
        that is in no arena. Raises EngineRejected, with everything else as it was.
        """
        lora_int_id = request.lora_int_id
        if lora_int_id in self.manager._registered_adapters:
            self.manager.get_adapter(lora_int_id)  # touches its place in the LRU order
            self._take_slot(lora_int_id)
        else:
            exhaust(self.bring_in(request, staged))
        return True

    def bring_in(
        self, request: Any, staged: Sequence[DeviceModule] = ()
    ) -> Generator[bool, None, None]:
        """Make the adapter of `request` resident, as `add` has it; yields after each small part.

        Yields True once, when only registering it is left. Raises EngineRejected, with everything
        else as it was; nothing is registered before the end.
        """
        lora_int_id = request.lora_int_id
        again = lora_int_id in self.known
        try:
            measured = self.stats.measured_parts
            phase = "rebuild" if again else "build"
            built = self._build(request, staged)
            model = yield from measured(phase, built, self.device, more=False)
            if None not in self.manager.lora_index_to_id:
                yield from measured("build", _planned(model), self.device, more=True)
            yield True
            if lora_int_id in self.manager._registered_adapters:
                return  # a step needed it meanwhile
            with self.stats.device_memory(self.device, more=True):
                self._register(lora_int_id, model, staged)
        except Exception as error:
            raise self.undone(request, error, forget=not again) from error
        if again:
            self.stats.rebuilds += 1
        else:
            self.stats.loads += 1
        if self.known[lora_int_id].residency in OWN_PLACE:
            self.manager._registered_adapters.pin(lora_int_id)

    def undone(self, request: Any, error: Exception, *, forget: bool) -> EngineRejected:
        """Take an adapter that failed back out; returns what is to be said of it."""
        self.stats.refused += 1
        self._undo(request.lora_int_id)
        if forget:
            self.forget(request.lora_int_id)
        return EngineRejected(f"adapter {request.lora_name}: {_text(error)}")

    def load(self, request: Any) -> Any:
        """Return the LoRAModel of `request`, for the first time or again; registers nothing."""
        return exhaust(self._build(request, ()))

    def _build(
        self, request: Any, staged: Sequence[DeviceModule]
    ) -> Generator[None, None, LoRAModel]:
        known = self.known.get(request.lora_int_id)
        if known is None:
            path = self.volume.revision_of(request.lora_path)
            assert path is not None, request.lora_path
            revision = None
            if not staged:
                revision = read_revision(self.volume.revision_directory(path.hex))
                yield
            known = Known(request.lora_name, path, revision)
        model = yield from self._model(request.lora_int_id, known, staged)
        self.known[request.lora_int_id] = known
        return model

    def _model(
        self, lora_int_id: int, known: Known, staged: Iterable[DeviceModule]
    ) -> Generator[None, None, LoRAModel]:
        if known.path.loader == "direct" and known.revision is not None:
            if known.model is None:
                known.model = yield from direct.build(
                    lora_int_id,
                    known.revision,
                    self.arena.current(),
                    self.targets,
                    self.manager.modules,
                    self.limits,
                )
            return known.model
        entry = self.store.get(lora_int_id)
        if entry is not None:
            return rebuild(lora_int_id, entry, self.manager.modules, self.limits)
        if known.revision is not None:
            staged = device_loader.from_arena(
                known.revision, self.arena.current(), self.targets, self.device
            )
        return device_loader.build(lora_int_id, list(staged), self.manager, self.device)

    def _register(self, lora_int_id: int, model: Any, staged: Sequence[DeviceModule]) -> None:
        manager = self.manager
        while len(manager) + 1 > manager.capacity and hasattr(manager, "remove_oldest_adapter"):
            manager.remove_oldest_adapter()
        manager.add_adapter(model)
        self._take_slot(lora_int_id)
        if not isinstance(model, direct.ReadyModel):
            self._offload(lora_int_id, model, staged)

    def _take_slot(self, lora_int_id: int) -> None:
        if self.in_step or None in self.manager.lora_index_to_id:
            self.manager.activate_adapter(lora_int_id)

    def _offload(self, lora_int_id: int, model: Any, staged: Sequence[DeviceModule]) -> None:
        with self.stats.timed("offload"):
            source = {f"{m.name}.{n}": t for m in staged for n, t in (("a", m.a), ("b", m.b))}
            offload(model, source, self.device)
            kept = self.store.put(lora_int_id, entry_of(model, source))
        if source and not kept:
            raise EngineRejected(
                f"its host copy does not fit the offload budget of {self.store.budget} bytes"
            )
        self.stats.offloads += 1

    # -- slots --------------------------------------------------------------------------------

    def activate(self, lora_int_id: int, original: Callable[[Any, int], bool]) -> bool:
        """Give a registered adapter a slot: ours by its plan, others by vLLM's `original`."""
        manager = self.manager
        model = manager._registered_adapters.get(lora_int_id)
        if not isinstance(model, direct.ReadyModel):
            self.fills.give_way()  # vLLM writes to the slot, behind what we have written
            return original(manager, lora_int_id)
        if lora_int_id in manager._active_adapters:
            return False
        if None not in manager.lora_index_to_id:
            raise ValueError("No free lora slots")
        index = manager.lora_index_to_id.index(None)
        manager._active_adapters[lora_int_id] = None
        manager.lora_index_to_id[index] = lora_int_id
        self.fills.start(lora_int_id, model.plan, index)
        if not self.in_parts:
            self.fill(lora_int_id)
        self.stats.activations += 1
        return True

    def fill(self, lora_int_id: int, until: float = math.inf, *, gently: bool = False) -> bool:
        """Enqueue more of the adapter's fill until time.perf_counter() passes `until`.

        `gently`: beside steps. Returns whether all of it is enqueued now.
        """
        with self.stats.timed("fill"), self.stats.device_memory(self.device, more=True):
            return self.fills.advance(lora_int_id, until, gently=gently)

    def refill(self) -> None:
        """Write every slot again: the device memory behind them was taken away meanwhile."""
        manager = self.manager
        self.fills.give_way()
        for lora_int_id in list(manager._active_adapters):
            manager.deactivate_adapter(lora_int_id)
            manager.activate_adapter(lora_int_id)
            self.fills.need(lora_int_id)
        # vLLM would keep a coming step's metadata if it is the last one's: what held it slept as well.
        manager._last_mapping = None
        self.stats.refills += 1

    @contextmanager
    def step(self, requests: Iterable[Any]) -> Iterator[None]:
        """Surround the activation of what the coming step uses.

        All of it counts as just used before the first is brought in, so that making room for one
        never evicts another. Afterwards the step waits, on the device, for the slots that it uses.
        """
        ids = [request.lora_int_id for request in requests if request]
        self.touch(ids)
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False
        for lora_int_id in ids:
            self.fills.need(lora_int_id)

    @contextmanager
    def parts(self) -> Iterator[None]:
        """Surround work whose fills are only started: whoever drives goes on with them."""
        self.in_parts = True
        try:
            yield
        finally:
            self.in_parts = False

    @contextmanager
    def reading_slot(self, lora_int_id: int) -> Iterator[None]:
        """Surround reading an adapter's slot: on a stream of its own, so that no step waits."""
        if self._reader is None:
            yield
            return
        if not isinstance(self.manager._registered_adapters.get(lora_int_id), direct.ReadyModel):
            # vLLM wrote it, on its own stream.
            self._reader.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._reader):
            self.fills.need(lora_int_id)
            yield

    def touch(self, lora_int_ids: Iterable[int]) -> None:
        """Count adapters as just used, in both tiers, where they are in them."""
        lora_int_ids = list(lora_int_ids)
        self.used = frozenset(lora_int_ids)
        for tier in (self.manager._registered_adapters, self.manager._active_adapters):
            for lora_int_id in lora_int_ids:
                if lora_int_id in tier:
                    tier.touch(lora_int_id)

    def ready(self) -> list[int]:
        """Return the adapters whose slots are complete."""
        slots = self.manager.lora_index_to_id
        return [each for each in slots if each is not None and self.fills.ready(each)]

    def _undo(self, lora_int_id: int) -> None:
        manager = self.manager
        index = None
        if lora_int_id in manager.lora_index_to_id:
            index = manager.lora_index_to_id.index(lora_int_id)
        manager.remove_adapter(lora_int_id)
        self.fills.drop(lora_int_id)
        if index is None:
            return
        try:
            self.fills.start(lora_int_id, empty_plan(manager.modules), index)
            self.fills.need(lora_int_id)
        except Exception:
            # The slot is free either way, and whoever gets it next writes all of it.
            _log.exception("lorafleet: slot %d could not be cleared", index)

    # -- out and pins -------------------------------------------------------------------------

    def remove(self, lora_int_id: int) -> bool:
        """Unload an adapter of ours for good; True if it was known."""
        self.manager.remove_adapter(lora_int_id)
        return self.forget(lora_int_id)

    def forget(self, lora_int_id: int) -> bool:
        """Drop everything kept for a rebuild of `lora_int_id`."""
        self.store.drop(lora_int_id)
        self.fills.drop(lora_int_id)
        self.background.forget(lora_int_id)
        known = self.known.pop(lora_int_id, None)
        if known is not None and known.model is not None:
            self.background.throw_away(known.model.plan)
        return known is not None

    def keep(self, lora_int_id: int, residency: str) -> None:
        """Keep a resident adapter as `residency` says (keeping.py). Raises EngineRejected."""
        keep(self.manager, lora_int_id, residency)
        if lora_int_id in self.known:
            self.known[lora_int_id].residency = residency

    def keep_slot(self, lora_int_id: int) -> None:
        """Pin the slot that an adapter of residency gpu has got just now."""
        known = self.known.get(lora_int_id)
        if known is not None and known.residency == GPU:
            keep(self.manager, lora_int_id, GPU)

    def make_way(self) -> None:
        """Let those go first, of what is about to be dropped, that are there only on demand."""
        first_out = [each for each, known in self.known.items() if known.residency == ON_DEMAND]
        let_go_first(self.manager, first_out, self.used)

    def report(self) -> dict[str, Any]:
        """Return the residency and memory of this worker, as /v1/state tells them."""
        return inventory.report(self)


def _planned(model: Any) -> Generator[None, None, None]:
    """Plan all of a model that gets no slot yet: what a slot cannot hold is told at the load."""
    if isinstance(model, direct.ReadyModel):
        for _ in model.plan:
            yield


def _text(error: Exception) -> str:
    """Return one non-empty line for `error`."""
    line = " ".join(str(error).split())
    if isinstance(error, LorafleetError):
        return line
    return f"vLLM refused the adapter with {type(error).__name__} ({line or 'no text'})"
