"""Reads what an engine answers: it may have been taken over, and is to cost its sidecar no more."""

from __future__ import annotations

from typing import Any, Final

import httpx
from lorafleet.errors import EngineRejected

MOST_BYTES: Final = 32 << 20
"""Of one answer: far above any profile, state or metrics of an engine."""


async def ask(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
    """Return the whole answer. Raises EngineRejected for a larger one, and what httpx raises."""
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    async with http.stream(method, path, headers=headers, **options) as answer:
        content = bytearray()
        async for piece in answer.aiter_raw():  # nothing is decompressed
            content += piece
            if len(content) > MOST_BYTES:
                raise EngineRejected(f"engine's answer to {path} has more than {MOST_BYTES} bytes")
        return httpx.Response(answer.status_code, content=bytes(content), request=answer.request)
