"""Which requests the engine has, as vLLM's API server keeps them."""

from __future__ import annotations

from typing import Any


def request_ids(engine: Any, revision: str | None = None) -> list[str]:
    """Return the ids of what waits and runs in `engine`, or of what does so on one revision.

    `revision` is its LoRARequest's name. What vLLM's metrics show as a request's adapter is the
    served name (patches/api_server.py): the revision stands beside it.
    """
    states = getattr(getattr(engine, "output_processor", None), "request_states", {})
    return [
        request_id
        for request_id, state in states.items()
        if revision in (None, getattr(state, "lorafleet_revision", state.lora_name))
    ]
