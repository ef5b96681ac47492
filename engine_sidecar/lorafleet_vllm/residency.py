"""Which of our adapters one worker holds, and how one gets in, back in, and out.

Called from the patched methods of vLLM's LoRA managers, in the worker's only thread. A failure
leaves nothing half-registered: the new id is gone, its slot empty, all others are as they were.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import EngineRejected, LorafleetError

from lorafleet_vllm import device_loader, direct
from lorafleet_vllm.arena_map import Arena
from lorafleet_vllm.host_store import HostStore
from lorafleet_vllm.offload import offload, total_bytes
from lorafleet_vllm.rebuild import entry_of, rebuild
from lorafleet_vllm.revision import Revision, read_revision
from lorafleet_vllm.settings import RevisionPath, Volume, offload_budget
from lorafleet_vllm.slot_plan import empty_plan, slot_tensors
from lorafleet_vllm.slots import SlotWriter
from lorafleet_vllm.stats import WorkerStats
from lorafleet_vllm.targets import read_targets
from lorafleet_vllm.tensor_tree import model_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    pinned: bool = False


class Residency:
    """Our adapters in one worker; `manager` is its LoRAModelManager."""

    def __init__(self, volume: Volume, manager: Any) -> None:
        self.volume = volume
        self.manager = manager
        self.device = torch.device(manager.device)
        self.arena = Arena(volume.arena, cuda=self.device.type == "cuda")
        self.arena.prepare()
        self.targets = read_targets(manager)
        self.stats = WorkerStats()
        self.writer = SlotWriter(self.device)
        budget = volume.arena.stat().st_size if volume.arena.exists() else 0
        self.store = HostStore(offload_budget(default=budget))
        self.known: dict[int, Known] = {}
        self.in_step = False
        self._due: dict[int, torch.cuda.Event] = {}

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
        """Make the adapter of `request` resident; True as vLLM's add_adapter has it.

        Inside a step it also gets a slot. Outside it gets one only if one is free: nobody's slot
        is taken before a request needs it. `staged` are tensors born on the device, for an adapter
        that is in no arena. Raises EngineRejected, with everything else as it was.
        """
        lora_int_id = request.lora_int_id
        if lora_int_id in self.manager._registered_adapters:
            self.manager.get_adapter(lora_int_id)  # touches its place in the LRU order
            self._take_slot(lora_int_id)
            return True
        again = lora_int_id in self.known
        try:
            with self.stats.device_memory(self.device):
                self._bring_in(lora_int_id, self.load(request, staged), staged)
        except Exception as error:
            self.stats.refused += 1
            self._undo(lora_int_id)
            if not again:
                self.forget(lora_int_id)
            raise EngineRejected(f"adapter {request.lora_name}: {_text(error)}") from error
        if again:
            self.stats.rebuilds += 1
        else:
            self.stats.loads += 1
        if self.known[lora_int_id].pinned:
            self.manager._registered_adapters.pin(lora_int_id)
        return True

    def load(self, request: Any, staged: Sequence[DeviceModule] = ()) -> Any:
        """Return the LoRAModel of `request`, for the first time or again; registers nothing."""
        known = self.known.get(request.lora_int_id)
        if known is not None:
            with self.stats.timed("rebuild"):
                return self._model(request.lora_int_id, known, ())
        path = self.volume.revision_of(request.lora_path)
        assert path is not None, request.lora_path
        with self.stats.timed("build"):
            revision = None
            if not staged:
                revision = read_revision(self.volume.revision_directory(path.hex))
            known = Known(request.lora_name, path, revision)
            model = self._model(request.lora_int_id, known, staged)
        self.known[request.lora_int_id] = known
        return model

    def _model(self, lora_int_id: int, known: Known, staged: Iterable[DeviceModule]) -> Any:
        if known.path.loader == "direct" and known.revision is not None:
            if known.model is None:
                known.model = direct.build(
                    lora_int_id,
                    known.revision,
                    self.arena.current(),
                    self.targets,
                    self.manager.modules,
                )
            return known.model
        entry = self.store.get(lora_int_id)
        if entry is not None:
            return rebuild(lora_int_id, entry)
        if known.revision is not None:
            staged = device_loader.from_arena(
                known.revision, self.arena.current(), self.targets, self.device
            )
        return device_loader.build(lora_int_id, list(staged), self.manager, self.device)

    def _bring_in(self, lora_int_id: int, model: Any, staged: Sequence[DeviceModule]) -> None:
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
        """Give a registered adapter a slot: a DirectModel by its plan, others by vLLM's `original`."""
        manager = self.manager
        model = manager._registered_adapters.get(lora_int_id)
        if not isinstance(model, direct.DirectModel):
            self.writer.join()  # vLLM writes on its own stream: our writes to the slot come first
            return original(manager, lora_int_id)
        if lora_int_id in manager._active_adapters:
            return False
        if None not in manager.lora_index_to_id:
            raise ValueError("No free lora slots")
        index = manager.lora_index_to_id.index(None)
        manager._active_adapters[lora_int_id] = None
        manager.lora_index_to_id[index] = lora_int_id
        with self.stats.timed("fill"):
            event = self.writer.write(model.plan, index)
        if event is not None:
            self._due[lora_int_id] = event
        self.stats.activations += 1
        return True

    @contextmanager
    def step(self, requests: Iterable[Any]) -> Iterator[None]:
        """Surround the activation of what the coming step uses.

        All of it counts as just used before the first is brought in, so that making room for one
        never evicts another. Afterwards the step waits, on the device, for the slots that it uses.
        """
        ids = [request.lora_int_id for request in requests if request]
        for lora_int_id in ids:
            self.manager._registered_adapters.touch(lora_int_id)
            self.manager._active_adapters.touch(lora_int_id)
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False
        for lora_int_id in ids:
            event = self._due.pop(lora_int_id, None)
            if event is not None:
                torch.cuda.current_stream(self.device).wait_event(event)

    def wait_for_slot(self, lora_int_id: int) -> None:
        """Make the device wait for a slot that is still being filled, before it reads it."""
        event = self._due.get(lora_int_id)
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def _undo(self, lora_int_id: int) -> None:
        manager = self.manager
        index = None
        if lora_int_id in manager.lora_index_to_id:
            index = manager.lora_index_to_id.index(lora_int_id)
        manager.remove_adapter(lora_int_id)
        self._due.pop(lora_int_id, None)
        if index is None:
            return
        try:
            self.writer.write(empty_plan(manager.modules), index)
            self.writer.join()
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
        self._due.pop(lora_int_id, None)
        return self.known.pop(lora_int_id, None) is not None

    def pin(self, lora_int_id: int, pinned: bool) -> None:
        """Keep a resident adapter from eviction, or no longer.

        It stays in the host tier, and in its slot too while another slot is left for others.
        Raises EngineRejected rather than let pins fill the tier: a step that then needs another
        adapter would end the engine.
        """
        manager = self.manager
        host, slots = manager._registered_adapters, manager._active_adapters
        if not pinned:
            host.pinned_items.discard(lora_int_id)
            slots.pinned_items.discard(lora_int_id)
        elif lora_int_id not in host:
            raise EngineRejected(f"adapter {lora_int_id} is not resident and cannot be pinned")
        elif len(host.pinned_items | {lora_int_id}) >= manager.capacity:
            raise EngineRejected(
                f"{len(host.pinned_items)} of {manager.capacity} adapters (max_cpu_loras) are "
                "pinned; one place must stay for the others"
            )
        else:
            host.pin(lora_int_id)
            free = len(slots.pinned_items | {lora_int_id}) < manager.lora_slots
            if lora_int_id in slots and free:
                slots.pin(lora_int_id)
        if lora_int_id in self.known:
            self.known[lora_int_id].pinned = pinned

    def report(self) -> dict[str, Any]:
        """Return the residency and memory of this worker, as /v1/state tells them."""
        manager = self.manager
        offloaded = [
            tensor
            for lora_int_id, known in self.known.items()
            if known.model is None and lora_int_id in manager._registered_adapters
            for tensor in model_tensors(manager._registered_adapters.cache[lora_int_id])
        ]
        return {
            **self.stats.to_dict(self.device),
            "gpu": [lora_id for lora_id in manager.lora_index_to_id if lora_id is not None],
            "host": list(manager._registered_adapters.order),
            "pinned": sorted(manager._registered_adapters.pinned_items),
            "slot_bytes": total_bytes(
                tensor for layer in manager.modules.values() for tensor in slot_tensors(layer)
            ),
            "registered_host_bytes": self.arena.registered_bytes,
            "pinned_host_bytes": total_bytes([*offloaded, *self.store.tensors()]),
        }


def _text(error: Exception) -> str:
    """Return one non-empty line for `error`."""
    line = " ".join(str(error).split())
    if isinstance(error, LorafleetError):
        return line
    return f"vLLM refused the adapter with {type(error).__name__} ({line or 'no text'})"
