"""Where vLLM's API server asks for an adapter that it lacks: its own resolver, made to wait.

vLLM would load what a `LoRAResolver` returns under an id of its own, and asks one only where
VLLM_ALLOW_RUNTIME_LORA_UPDATING lets every client load and unload adapters. Here the answer is the
revision that the sidecar has published meanwhile, and no client is allowed anything.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


def resolve_lora(original: Any) -> Any:
    """Let vLLM's own question for an adapter that it lacks wait for the sidecar's answer."""

    async def waiting(self: Any, lora_name: str) -> Any:
        first_requests = getattr(self, "lorafleet_first_requests", None)
        if first_requests is None or lora_name in self.lora_requests:
            return await original(self, lora_name)
        absent = await first_requests.bring(lora_name)
        if absent is None and lora_name in self.lora_requests:
            return self.lora_requests[lora_name]
        if self.lora_resolvers:  # others may know the name
            return await original(self, lora_name)
        return _not_there(lora_name, absent)

    return waiting


def _not_there(name: str, absent: Any) -> Any:
    from vllm.entrypoints.openai.models.serving import create_error_response

    status = HTTPStatus(absent.status if absent else HTTPStatus.SERVICE_UNAVAILABLE)
    line = absent.line if absent else f"The model `{name}` is being moved; try again."
    missing = status is HTTPStatus.NOT_FOUND
    return create_error_response(
        line, "NotFoundError" if missing else "ServiceUnavailableError", status, "model"
    )


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


def _is_missing(found: Any) -> bool:
    return getattr(getattr(found, "error", None), "code", None) == HTTPStatus.NOT_FOUND
