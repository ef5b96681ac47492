"""The API server's table of served names, which also knows who is using which revision.

vLLM looks a name up with `table[name]` while it answers an HTTP request, and registers the request
with the engine later. The table therefore counts from the look-up on: the HTTP request that looked
a revision up holds it until it is answered, response streamed and all; outside of one the task does.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from lorafleet_vllm import outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_vllm.settings import Volume


def shown_name(volume: Volume, request: Any) -> str:
    """Return the name that clients know the adapter of `request` (a LoRARequest) by."""
    name = str(request.lora_name)
    return name.rpartition("@")[0] if volume.revision_of(request.lora_path) is not None else name


class ServedNames(dict[str, Any]):
    """Served name -> LoRARequest, in place of OpenAIServingModels.lora_requests.

    An adapter of ours is in it under its served name and, while it is loaded, as
    `<served name>@<first 12 hex digits of its digest>`; stock adapters are as vLLM put them.
    """

    def __init__(self, volume: Volume, others: dict[str, Any]) -> None:
        super().__init__(others)
        self._volume = volume
        self._holders: dict[int, set[object]] = {}
        self._outcomes: dict[int, outcomes.Outcome] = {}
        self._used_at: dict[int, float] = {}
        self.lookups = 0  # of any adapter: each may move others between the tiers

    def __getitem__(self, name: str) -> Any:
        request = super().__getitem__(name)
        self.lookups += 1
        if self.is_ours(request):
            self._hold(request.lora_int_id)
        return request

    def peek(self, name: str) -> Any:
        """Return the request of `name` or None, without counting as a user of it."""
        return super().get(name)

    def is_ours(self, request: Any) -> bool:
        """Whether `request` is for a revision on our volume."""
        return self._volume.revision_of(request.lora_path) is not None

    def _hold(self, lora_int_id: int) -> None:
        self._used_at[lora_int_id] = time.monotonic()
        holders = self._holders.setdefault(lora_int_id, set())
        request = outcomes.current.get()
        if request is not None:
            if request not in holders:
                holders.add(request)
                request.users.append((self, lora_int_id))
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:  # not in an event loop: nothing that could be in flight
            return
        if task is not None and task not in holders:
            holders.add(task)
            task.add_done_callback(holders.discard)

    def release(
        self, lora_int_id: int, request: outcomes.Request, *, failed: bool, counts: bool
    ) -> None:
        """Let an HTTP request go that is answered, and count how it ended."""
        holders = self._holders.get(lora_int_id)
        if holders is None or request not in holders:
            return  # unloaded meanwhile
        holders.discard(request)
        if counts:
            found = self._outcomes.setdefault(lora_int_id, outcomes.Outcome())
            found.requests += 1
            found.errors += failed

    def outcome(self, lora_int_id: int) -> outcomes.Outcome:
        """Return how the revision's requests have ended so far."""
        return self._outcomes.get(lora_int_id, outcomes.Outcome())

    def used_at(self, lora_int_id: int) -> float:
        """Return when a request last looked the revision up (time.monotonic()), 0 if none did."""
        return self._used_at.get(lora_int_id, 0.0)

    def holders(self, lora_int_id: int) -> int:
        """Return how many requests have looked the revision up and are not answered yet."""
        return len(self._holders.get(lora_int_id, ()))

    def forget(self, lora_int_id: int) -> None:
        """Drop the bookkeeping of an unloaded revision."""
        self._holders.pop(lora_int_id, None)
        self._outcomes.pop(lora_int_id, None)
        self._used_at.pop(lora_int_id, None)

    def shown_name(self, request: Any) -> str:
        """Return the name that clients know the adapter of `request` by."""
        return shown_name(self._volume, request)

    def rewrite_cards(self, cards: Iterable[Any]) -> list[Any]:
        """Return vLLM's model cards with ours under their served names, each once."""
        ours = {r.lora_name: [] for r in self.values() if self.is_ours(r)}  # type: dict[str, list[str]]
        for name, request in self.items():
            if self.is_ours(request) and name != request.lora_name:
                ours[request.lora_name].append(name)
        shown = []
        for card in cards:
            if card.id not in ours:
                shown.append(card)
                continue
            shown.extend(card.model_copy(update={"id": name}) for name in ours.pop(card.id))
            ours[card.id] = []
        return shown
