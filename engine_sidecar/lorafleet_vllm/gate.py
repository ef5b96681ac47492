"""In the engine core: a request whose adapter has no slot yet waits alone, and the others run on.

vLLM brings an adapter in inside the step that uses it, so that everybody in the batch waits for the
bus. Here such a request stays in the scheduler's queue until the workers say that the slot is
complete; they fill it a little at a time, between the steps of others (`background`). The gate only
saves time: if it lets a request through too early, the step waits for the slot as it always did.
"""

from __future__ import annotations

import inspect
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_vllm.settings import Volume

_log = logging.getLogger("vllm.lorafleet")
_QUEUES = ("waiting", "skipped_waiting")  # the second: before vLLM 0.32
_ELSEWHERE = ("WAITING_FOR_REMOTE_KVS", "WAITING_FOR_STREAMING_REQ")  # these wait for other things


class SlotGate:
    """The gate of one scheduler; `slots` is max_loras."""

    def __init__(self, executor: Any, volume: Volume, slots: int) -> None:
        self._executor = executor
        self._volume = volume
        self._slots = slots
        self._ready: set[int] = set()  # adapters whose slots were complete when last heard
        self._refused: set[int] = set()  # the step shall say why they can't be brought in
        self._asked: Any = None  # the workers' answers to come
        self.held = 0  # requests that waited for a slot, counted once for each schedule

    @contextmanager
    def holding(self, scheduler: Any) -> Iterator[None]:
        """Take the requests that must wait out of the queues while `scheduler` plans a step."""
        queues = [queue for queue in (getattr(scheduler, name, ()) for name in _QUEUES) if queue]
        held = self._hold(scheduler.running, queues) if queues else []
        try:
            yield
        finally:
            for queue, requests in held:
                for request in reversed(requests):
                    queue.prepend_request(request)

    def _hold(self, running: Iterable[Any], queues: list[Any]) -> list[tuple[Any, list[Any]]]:
        waiting = [(queue, list(queue)) for queue in queues]
        requests = [*running, *(request for _, queued in waiting for request in queued)]
        loras = {r.lora_request.lora_int_id: r.lora_request for r in requests if r.lora_request}
        # The adapters that the next steps can use at all, in the order of their requests.
        needed = list(loras)[: self._slots]
        wanted = [loras[each] for each in needed if not self._passes(loras[each])]
        if wanted:
            self._ask(wanted, needed)
        shut = {each for each, lora in loras.items() if not self._passes(lora)}
        held = []
        for queue, queued in waiting:
            blocked = [request for request in queued if _must_wait(request, shut)]
            if blocked:
                queue.remove_requests(blocked)
                held.append((queue, blocked))
                self.held += len(blocked)
        return held

    def _passes(self, lora: Any) -> bool:
        known = lora.lora_int_id in self._ready or lora.lora_int_id in self._refused
        return known or self._volume.revision_of(lora.lora_path) is None

    def _ask(self, wanted: list[Any], needed: list[int]) -> None:
        """Let the workers go on, without waiting for a step that they may be in."""
        if self._asked is None:
            self._refused.clear()
            triples = [(lora.lora_int_id, lora.lora_name, lora.lora_path) for lora in wanted]
            self._asked = self._executor.collective_rpc(
                "lorafleet_fetch", args=(triples, needed), non_block=True
            )
        if not self._asked.done():
            return
        try:
            answers = [json.loads(text) for text in self._asked.result()]
        except Exception:
            _log.exception("lorafleet: the workers do not fill slots beside the steps")
            answers = [{"ready": [], "failed": [lora.lora_int_id for lora in wanted]}]
        self._asked = None
        self._ready = set.intersection(*(set(answer["ready"]) for answer in answers))
        self._refused.update(*(answer["failed"] for answer in answers))


def _must_wait(request: Any, shut: set[int]) -> bool:
    lora = request.lora_request
    return bool(lora) and lora.lora_int_id in shut and request.status.name not in _ELSEWHERE


def make_gate(core: Any, volume: Volume | None) -> SlotGate | None:
    """Return the gate for an EngineCore, or None where there is nothing to hold back."""
    lora = core.vllm_config.lora_config
    executor = core.model_executor
    if lora is None or volume is None:
        return None
    if "non_block" not in inspect.signature(executor.collective_rpc).parameters:
        _log.warning("lorafleet: %s cannot be asked beside a step", type(executor).__name__)
        return None
    return SlotGate(executor, volume, lora.max_loras)
