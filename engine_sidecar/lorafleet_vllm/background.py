"""Loads and rebuilds that a worker does beside its steps: a little at a time, between two of them.

Driven from outside, by the loader of a new revision (control socket) and by the gate in the engine
core that holds back the requests of an adapter without a slot. Every call does a bounded piece.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lorafleet.errors import EngineRejected

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lorafleet_vllm.residency import Residency

SLICE_SECONDS = 0.0005  # of the host's time, for one call; a decode step takes 5 ms


class Background:
    """The work in progress of one worker, the oldest first."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        # Both with the request, and whether it is a first load.
        self._coming: dict[int, tuple[Any, bool, Generator[None, None, None]]] = {}
        self._filling: dict[int, tuple[Any, bool]] = {}
        self._errors: dict[int, str] = {}

    def begin(self, request: Any) -> None:
        """Start to bring the adapter of `request` in, unless it is there or on its way."""
        lora_int_id = request.lora_int_id
        self._errors.pop(lora_int_id, None)
        resident = lora_int_id in self._residency.manager._registered_adapters
        if not resident and lora_int_id not in self._coming:
            first = lora_int_id not in self._residency.known
            self._coming[lora_int_id] = request, first, self._residency.bring_in(request)

    def progress(self, lora_int_id: int) -> dict[str, Any]:
        """Go on for a slice. Returns `done`, `error` (empty unless it failed), and `busy`.

        `busy`: there is more for the host to do; else it is the device that is waited for.
        """
        self._go_on()
        error = self._errors.pop(lora_int_id, "")
        return {
            "done": bool(error) or self._is_done(lora_int_id),
            "error": error,
            "busy": bool(self._coming or self._residency.fills.unfinished()),
        }

    def fetch(self, wanted: Sequence[Any], needed: Sequence[int]) -> dict[str, Any]:
        """Go on for a slice with bringing `wanted` (requests) into slots.

        `needed` are the adapters, `wanted` among them, that no other may push out of its slot.
        Returns the adapters whose slots are complete (`ready`) and those that failed (`failed`).
        """
        residency = self._residency
        residency.touch(needed)
        failed = []
        for request in wanted:
            lora_int_id = request.lora_int_id
            if lora_int_id in self._errors:
                failed.append(lora_int_id)
                del self._errors[lora_int_id]
            elif lora_int_id in residency.manager._registered_adapters:
                self._activate(request, needed)
            else:
                self.begin(request)
        self._go_on()
        return {"ready": residency.ready(), "failed": failed}

    def forget(self, lora_int_id: int) -> None:
        """Give up whatever is on its way of an adapter that is unloaded."""
        for kept in (self._coming, self._filling, self._errors):
            kept.pop(lora_int_id, None)

    def _is_done(self, lora_int_id: int) -> bool:
        residency = self._residency
        return lora_int_id not in self._coming and residency.fills.ready(lora_int_id)

    def _activate(self, request: Any, needed: Sequence[int]) -> None:
        residency = self._residency
        manager = residency.manager
        lora_int_id = request.lora_int_id
        taken = {i for i in manager.lora_index_to_id if i is not None}
        kept = taken & {*needed, *getattr(manager._active_adapters, "pinned_items", ())}
        if lora_int_id in taken or len(kept) >= manager.lora_slots:
            return  # it has its slot, or every slot is somebody's who needs it
        self._filling[lora_int_id] = request, False
        with residency.parts():
            manager.activate_adapter(lora_int_id)

    def _go_on(self) -> None:
        """Do some of the oldest work; one part of it at least, however long that takes."""
        residency = self._residency
        until = time.perf_counter() + SLICE_SECONDS
        with residency.parts():
            for lora_int_id in residency.fills.unfinished():
                if lora_int_id not in residency.manager.lora_index_to_id:
                    residency.fills.drop(lora_int_id)  # it was pushed out again meanwhile
                elif not self._fill(lora_int_id, until):
                    return
            for lora_int_id in list(self._coming):
                if not self._build(lora_int_id, until):
                    return

    def _fill(self, lora_int_id: int, until: float) -> bool:
        residency = self._residency
        try:
            enqueued = residency.fill(lora_int_id, until)
        except Exception as error:
            if lora_int_id not in self._filling:
                raise
            request, first = self._filling.pop(lora_int_id)
            self._errors[lora_int_id] = str(residency.undone(request, error, forget=first))
            return True
        if enqueued:
            self._filling.pop(lora_int_id, None)
        return enqueued

    def _build(self, lora_int_id: int, until: float) -> bool:
        request, first, parts = self._coming[lora_int_id]
        try:
            while True:
                next(parts)
                if time.perf_counter() >= until:
                    return False
        except StopIteration:
            del self._coming[lora_int_id]
            self._filling[lora_int_id] = request, first
            return True
        except EngineRejected as error:
            self._coming.pop(lora_int_id, None)
            self._errors[lora_int_id] = str(error)
            return True
