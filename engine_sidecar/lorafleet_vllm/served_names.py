"""The API server's table of served names, which also knows who is using which revision.

vLLM looks a name up with `table[name]` while it answers an HTTP request, and registers the request
with the engine later. The table therefore counts from the look-up on: the HTTP request that looked
a revision up holds it until it is answered, response streamed and all; outside of one the task does.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from lorafleet import pinned_names

from lorafleet_vllm import outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_vllm.loaded import Loaded
    from lorafleet_vllm.settings import Volume


def shown_name(volume: Volume, request: Any) -> str:
    """Return the name that clients know the adapter of `request` (a LoRARequest) by."""
    name = str(request.lora_name)
    return name.rpartition("@")[0] if volume.revision_of(request.lora_path) is not None else name


class ServedNames(dict[str, Any]):
    """Served name -> LoRARequest, in place of OpenAIServingModels.lora_requests.

    An adapter of ours is in it under its served name; stock adapters are as vLLM put them. Pinned names
    (lorafleet/pinned_names.py) are listed nowhere, and answered to if their revision is served, or is
    loaded and proved and not closed by the sidecar.
    """

    def __init__(self, volume: Volume, others: dict[str, Any]) -> None:
        super().__init__(others)
        self._volume = volume
        self._holders: dict[int, set[object]] = {}
        self._outcomes: dict[int, outcomes.Outcome] = {}
        self._loaded: dict[str, list[Loaded]] = {}  # by served name, the latest last
        self._used_at: dict[int, float] = {}
        self.lookups = 0  # of any adapter: each may move others between the tiers

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._pinned(name) is not None

    def __getitem__(self, name: str) -> Any:
        request = self._pinned(name)
        if request is None:
            request = super().__getitem__(name)
        self.lookups += 1
        if self.is_ours(request):
            self._hold(request.lora_int_id, name)
        return request

    def peek(self, name: str) -> Any:
        """Return the request of `name` or None, without counting as a user of it."""
        return super().get(name)

    def is_ours(self, request: Any) -> bool:
        """Whether `request` is for a revision on our volume."""
        return self._volume.revision_of(request.lora_path) is not None

    def add(self, loaded: Loaded) -> None:
        """Answer to the pinned names of a revision that was loaded."""
        self._loaded.setdefault(loaded.served_name, []).append(loaded)

    def here(self, served_name: str) -> list[Loaded]:
        """Return the revisions of a served name that can be asked for by a pinned name."""
        current = self.peek(served_name)
        return [
            each
            for each in self._loaded.get(served_name, ())
            if each.request is current or (each.verified and not each.closed)
        ]

    def close(self, served_name: str) -> None:
        """Let new requests for the pinned names of an adapter fail, as for its served name."""
        for each in self._loaded.get(served_name, ()):
            each.closed = True

    def _pinned(self, name: object) -> Any:
        """Return the request of a revision of ours that `name` pins, or None."""
        pinned = pinned_names.parse(name) if isinstance(name, str) else None
        if pinned is None:
            return None
        found = pinned_names.find(pinned, self.here(pinned.served_name))
        return found and found.request

    def _hold(self, lora_int_id: int, name: str) -> None:
        self._used_at[lora_int_id] = time.monotonic()
        holders = self._holders.setdefault(lora_int_id, set())
        request = outcomes.current.get()
        if request is not None:
            request.asked[lora_int_id] = name
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

    def forget(self, loaded: Loaded) -> None:
        """Drop the bookkeeping of an unloaded revision."""
        lora_int_id = loaded.request.lora_int_id
        others = [each for each in self._loaded.pop(loaded.served_name, ()) if each is not loaded]
        if others:
            self._loaded[loaded.served_name] = others
        self._holders.pop(lora_int_id, None)
        self._outcomes.pop(lora_int_id, None)
        self._used_at.pop(lora_int_id, None)

    def model_name(self, request: Any) -> str:
        """Return what an answer calls the adapter of `request`: the name that was asked for."""
        answered = outcomes.current.get()
        asked = answered.asked.get(request.lora_int_id) if answered is not None else None
        return asked or shown_name(self._volume, request)

    def rewrite_cards(self, cards: Iterable[Any]) -> list[Any]:
        """Return vLLM's model cards with ours under their served names."""
        ours = {each.lora_name: name for name, each in self.items() if self.is_ours(each)}
        return [
            card.model_copy(update={"id": ours[card.id]}) if card.id in ours else card
            for card in cards
        ]
