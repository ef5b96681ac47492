"""Loads and rebuilds that a worker does beside its steps: a little at a time.

Asked for from outside, by the loader of a new revision (control socket) and by the gate in the engine
core that holds back the requests of an adapter without a slot. While there are steps, the work is
done behind each: it has been launched, and the host would only wait for the device. Without steps
the calls from outside do it. Every call does a bounded piece.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lorafleet.errors import EngineRejected

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lorafleet_vllm.residency import Residency
    from lorafleet_vllm.slots import LayerFill, SlotPlan

SLICE_SECONDS = 0.001
"""Of the host's time, behind a step: one of decoding keeps the device for 5 ms."""
PAUSE_SLICE_SECONDS = 0.006
"""For one call from outside while there are no steps: a request that comes now waits for it. The way of
a call through the API server, the engine core and every rank takes a millisecond and more."""
_STEP_SECONDS = 0.02  # steps that are so near to each other leave no pause to work in
_LONGEST_STEP_SECONDS = 1.0
_TRASH_AT_A_TIME = 4  # layers: a plan of 48 takes 2 ms
_log = logging.getLogger("vllm.lorafleet")


@dataclass
class _Coming:
    """An adapter that is being built; `built` when only its registering is left."""

    request: Any
    first: bool
    parts: Generator[bool, None, None]
    built: bool = False


class Background:
    """The work in progress of one worker, the oldest first."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._coming: dict[int, _Coming] = {}
        # With the request, and whether it is a first load.
        self._filling: dict[int, tuple[Any, bool]] = {}
        self._errors: dict[int, str] = {}
        self._trash: list[LayerFill] = []  # of plans that nobody needs any more
        self._launched = -math.inf  # when the last step was
        self._steps_until = -math.inf  # until when another may be expected

    def begin(self, request: Any) -> None:
        """Start to bring the adapter of `request` in, unless it is there or on its way."""
        lora_int_id = request.lora_int_id
        self._errors.pop(lora_int_id, None)
        resident = lora_int_id in self._residency.manager._registered_adapters
        if not resident and lora_int_id not in self._coming:
            first = lora_int_id not in self._residency.known
            self._coming[lora_int_id] = _Coming(request, first, self._residency.bring_in(request))

    def behind_step(self) -> None:
        """Go on for a slice while the device is busy with the step that was just launched.

        Nothing is registered: that may take a slot away from an adapter whose step is not launched
        to its end.
        """
        now = time.perf_counter()
        interval = min(now - self._launched, _LONGEST_STEP_SECONDS)
        self._launched, self._steps_until = now, now + max(_STEP_SECONDS, 2 * interval)
        del self._trash[-_TRASH_AT_A_TIME:]
        if not self._coming and not self._residency.fills.unfinished():
            return
        try:
            self._go_on(behind=True)
        except Exception:
            # The step is right without it; whoever asked for the work meets the error itself.
            _log.exception("lorafleet: the work behind a step failed")
            self._steps_until = -math.inf

    def progress(self, lora_int_id: int) -> dict[str, Any]:
        """Go on for a slice. Returns `done`, `error` (empty unless it failed), and `busy`.

        `busy`: there is more for the caller to do; else it is the device or steps that are waited for.
        """
        stepping = self._between()
        error = self._errors.pop(lora_int_id, "")
        return {
            "done": bool(error) or self._is_done(lora_int_id),
            "error": error,
            "busy": not stepping and bool(self._coming or self._residency.fills.unfinished()),
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
        self._between()
        return {"ready": residency.ready(), "failed": failed}

    def forget(self, lora_int_id: int) -> None:
        """Give up whatever is on its way of an adapter that is unloaded."""
        for kept in (self._coming, self._filling, self._errors):
            kept.pop(lora_int_id, None)

    def throw_away(self, plan: SlotPlan) -> None:
        """Free a plan behind the coming steps, or now if there are none."""
        self._trash += plan.parts()
        if time.perf_counter() >= self._steps_until:
            self._trash.clear()

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

    def _between(self) -> bool:
        """Do what is due between two steps; returns whether steps do the rest."""
        if time.perf_counter() >= self._steps_until:
            self._go_on(behind=False)
            return False
        with self._residency.parts():
            for lora_int_id in [key for key, each in self._coming.items() if each.built]:
                self._build(lora_int_id, until=0.0, register=True)
        return True

    def _go_on(self, *, behind: bool) -> None:
        """Do some of the oldest work; one part of it at least, however long that takes."""
        until = time.perf_counter() + (SLICE_SECONDS if behind else PAUSE_SLICE_SECONDS)
        with self._residency.parts():
            if not self._fill_slots(until, gently=behind):
                return
            for lora_int_id in list(self._coming):
                if not self._build(lora_int_id, until, register=not behind):
                    return
            if time.perf_counter() < until:
                self._fill_slots(until, gently=behind)  # of those that were registered just now

    def _fill_slots(self, until: float, *, gently: bool) -> bool:
        """Go on with the fills, the oldest first; returns whether all of them are enqueued."""
        residency = self._residency
        for lora_int_id in residency.fills.unfinished():
            if lora_int_id not in residency.manager.lora_index_to_id:
                residency.fills.drop(lora_int_id)  # it was pushed out again meanwhile
            elif not self._fill(lora_int_id, until, gently=gently):
                return False
        return True

    def _fill(self, lora_int_id: int, until: float, *, gently: bool) -> bool:
        residency = self._residency
        try:
            enqueued = residency.fill(lora_int_id, until, gently=gently)
        except Exception as error:
            if lora_int_id not in self._filling:
                raise
            request, first = self._filling.pop(lora_int_id)
            self._errors[lora_int_id] = str(residency.undone(request, error, forget=first))
            return True
        if enqueued:
            self._filling.pop(lora_int_id, None)
        return enqueued

    def _build(self, lora_int_id: int, until: float, *, register: bool) -> bool:
        """Go on with one that is coming; returns whether there is time left for another."""
        coming = self._coming[lora_int_id]
        try:
            while register or not coming.built:
                coming.built = next(coming.parts)
                if time.perf_counter() >= until and not (register and coming.built):
                    return False
        except StopIteration:
            del self._coming[lora_int_id]
            self._filling[lora_int_id] = coming.request, coming.first
        except EngineRejected as error:
            self._coming.pop(lora_int_id, None)
            self._errors[lora_int_id] = str(error)
        return True
