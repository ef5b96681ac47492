"""Which clients may use vLLM's own endpoints for adapters."""

from __future__ import annotations

import pytest
from lorafleet_vllm.lora_endpoints import refused

LOADING = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/load_lora_adapter/",
    "//v1//load_lora_adapter",
    "/root/path/v1/load_lora_adapter",
    "/adapters",
    "/adapters/",
    "/adapters/demo",
    "/root/adapters/demo",
    "/v1/load_lora_adapter/\n",
]
OTHERS = [
    "/",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/health",
    "/metrics",
    "/v1/load_lora_adapters",
    "/my_adapters",
    "/adapters/demo/else",
]
LOCAL = [None, ("127.0.0.1", 1), ("127.3.2.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)]
REMOTE = [("10.0.0.7", 1), ("fd00::7", 1), ("::ffff:10.0.0.7", 1), ("169.254.1.1", 1),
          ("0.0.0.0", 1), ("unknown", 0), ("", 0), ("localhost", 0)]  # fmt: skip


@pytest.mark.parametrize("client", REMOTE, ids=str)
@pytest.mark.parametrize("path", LOADING[:-1])
def test_no_other_pod_loads_or_unloads(path: str, client: tuple[str, int]) -> None:
    assert refused(path, client)


@pytest.mark.parametrize("client", LOCAL, ids=str)
@pytest.mark.parametrize("path", LOADING)
def test_the_pod_itself_does(path: str, client: tuple[str, int] | None) -> None:
    assert not refused(path, client)


@pytest.mark.parametrize("client", [*LOCAL, *REMOTE], ids=str)
@pytest.mark.parametrize("path", OTHERS)
def test_everything_else_is_everybodys(path: str, client: tuple[str, int] | None) -> None:
    assert not refused(path, client)
