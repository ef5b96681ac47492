"""Where vLLM's API server asks for an adapter that it lacks: its own resolver, made to wait.

vLLM would load what a `LoRAResolver` returns under an id of its own, and asks one only where
VLLM_ALLOW_RUNTIME_LORA_UPDATING lets every client load and unload adapters. Here the answer is the
revision that the sidecar has published meanwhile, and no client is allowed anything.

A pinned name waits only where its adapter is not served at all: for the adapter, whose revision is then
the one that is meant, or is not.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lorafleet import pinned_names

from lorafleet_vllm.first_requests import NOT_FOUND, Absent

if TYPE_CHECKING:
    from collections.abc import Callable


def refusal(name: str, absent: Absent | None) -> Any:
    """Return vLLM's answer for a name that is not there; `absent` says why, None if it was a moment ago."""
    from vllm.entrypoints.openai.models.serving import create_error_response

    status = HTTPStatus(absent.status if absent else HTTPStatus.SERVICE_UNAVAILABLE)
    line = absent.line if absent else f"The model `{name}` is being moved; try again."
    missing = status is HTTPStatus.NOT_FOUND
    return create_error_response(
        line, "NotFoundError" if missing else "ServiceUnavailableError", status, "model"
    )


def resolve_lora(original: Any, refuse: Callable[[str, Absent | None], Any] = refusal) -> Any:
    """Let vLLM's own question for an adapter that it lacks wait for the sidecar's answer."""

    async def waiting(self: Any, lora_name: str) -> Any:
        first_requests = getattr(self, "lorafleet_first_requests", None)
        if first_requests is None or lora_name in self.lora_requests:
            return await original(self, lora_name)
        names, pinned = self.lora_requests, pinned_names.parse(lora_name)
        asked_for = lora_name if pinned is None else pinned.served_name
        absent = None
        if asked_for not in names:
            absent = await first_requests.bring(asked_for)
        if absent is None and lora_name in names:
            return names[lora_name]
        held = [] if pinned is None else names.here(asked_for)
        if self.lora_resolvers and not held:  # others may know the name
            return await original(self, lora_name)
        if pinned is not None and absent is None:
            absent = Absent(NOT_FOUND, pinned_names.absence(lora_name, pinned, held))
        return refuse(lora_name, absent)

    return waiting


def check_model(original: Any) -> Any:
    """Ask for an adapter also where vLLM would only if anybody were allowed to load adapters."""

    async def asking(self: Any, request: Any, *args: Any) -> Any:
        name = request.model
        models = self.models
        asks = hasattr(models, "lorafleet_first_requests") and name
        if asks and name not in models.lora_requests and not models.is_base_model(name):
            found = await models.resolve_lora(name)
            # VLLM_SKIP_MODEL_NAME_VALIDATION: the base model answers to names that nobody has, but
            # not to an adapter's that is only not here yet.
            nobodys = self._is_model_supported(name) and _is_missing(found)
            if name not in models.lora_requests and not nobodys:
                return found
        return await original(self, request, *args)

    return asking


def check_pooled_model(original: Any) -> Any:
    """The same where vLLM checks, and goes on whatever it found."""
    asking = check_model(original)

    async def raising(self: Any, request: Any, *args: Any) -> Any:
        from fastapi import HTTPException

        found = await asking(self, request, *args)
        if hasattr(found, "error"):
            raise HTTPException(found.error.code, found.error.message)
        return found

    return raising


def is_model_supported(original: Any) -> Any:
    """Keep the base model from answering to pinned names: without validation it answers to all."""

    def supported(self: Any, model_name: Any) -> bool:
        active = hasattr(self.models, "lorafleet_first_requests")
        if active and pinned_names.parse(model_name or "") is not None:
            return bool(self.models.is_base_model(model_name))
        return bool(original(self, model_name))

    return supported


def _is_missing(found: Any) -> bool:
    return getattr(getattr(found, "error", None), "code", None) == HTTPStatus.NOT_FOUND
