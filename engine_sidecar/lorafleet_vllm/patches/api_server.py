"""In the API server: the table of served names, the control socket, first requests, metrics."""

from __future__ import annotations

import logging
from typing import Any

import vllm

from lorafleet_vllm import compat
from lorafleet_vllm.patches.wrap import wrap
from lorafleet_vllm.settings import volume_from_environment

_log = logging.getLogger("vllm.lorafleet")


def patch_metrics() -> None:
    """Patch where vLLM counts requests by adapter."""
    reason = compat.check(vllm.__version__, compat.METRICS_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: vLLM's metrics show revisions, not served names: %s", reason)
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    wrap(OutputProcessor, "add_request", _count_under_served_name)


def _count_under_served_name(original: Any) -> Any:
    """Let a request count under the name that it asked for: routers look for that name."""
    volume = volume_from_environment()

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        from lorafleet_vllm.served_names import shown_name

        original(self, request, *args, **kwargs)
        state = self.request_states.get(request.request_id)
        if volume is not None and state is not None and request.lora_request is not None:
            state.lorafleet_revision = request.lora_request.lora_name  # for Control.in_flight
            state.lora_name = shown_name(volume, request.lora_request)

    return add_request


def patch_api_server(reason: str) -> None:
    """Patch the table of models; `reason` is what the handshake says, "ok" or why not."""
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    def init(original: Any) -> Any:
        def start_with_control(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            _start_control(self, reason)

        return start_with_control

    from fastapi import FastAPI

    wrap(OpenAIServingModels, "__init__", init)
    active = reason == compat.OK
    wrap(FastAPI, "build_middleware_stack", _surround if active else _guard)
    if active:
        from vllm.v1.engine.async_llm import AsyncLLM

        wrap(AsyncLLM, "wake_up", _woken)
        wrap(OpenAIServingModels, "model_name", _model_name)
        wrap(OpenAIServingModels, "show_available_models", _show_available_models)
        _patch_first_requests()


def _patch_first_requests() -> None:
    reason = compat.check(vllm.__version__, compat.FIRST_REQUEST_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: requests do not wait for adapters that are not here: %s", reason)
        return
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
    from vllm.entrypoints.serve.engine.serving import BaseServing

    from lorafleet_vllm import asking

    wrap(OpenAIServingModels, "resolve_lora", asking.resolve_lora)
    wrap(BaseServing, "_check_model", asking.check_model)
    wrap(PoolingBaseServing, "_check_model", asking.check_pooled_model)
    for serving in (BaseServing, PoolingBaseServing):
        wrap(serving, "_is_model_supported", asking.is_model_supported)


def _guard(original: Any) -> Any:
    def build_middleware_stack(self: Any) -> Any:
        from lorafleet_vllm.lora_endpoints import guarded

        return guarded(original(self))

    return build_middleware_stack


def _surround(original: Any) -> Any:
    def build_middleware_stack(self: Any) -> Any:
        from lorafleet_vllm.lora_endpoints import guarded
        from lorafleet_vllm.outcomes import counting

        return counting(guarded(original(self)))

    return build_middleware_stack


def _start_control(models: Any, reason: str) -> None:
    try:
        from lorafleet_vllm.front import start

        start(models, reason)
    except Exception:
        _log.exception("lorafleet: the control socket could not be started")


def _woken(original: Any) -> Any:
    async def wake_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        from lorafleet_vllm.front import woken

        try:
            return await original(self, *args, **kwargs)
        finally:
            woken()

    return wake_up


def _model_name(original: Any) -> Any:
    def model_name(self: Any, lora_request: Any = None) -> str:
        name = str(original(self, lora_request))
        table = self.lora_requests
        return (
            table.model_name(lora_request)
            if hasattr(table, "model_name") and lora_request
            else name
        )

    return model_name


def _show_available_models(original: Any) -> Any:
    async def show_available_models(self: Any) -> Any:
        models = await original(self)
        if hasattr(self.lora_requests, "rewrite_cards"):
            models.data = self.lora_requests.rewrite_cards(models.data)
        return models

    return show_available_models
