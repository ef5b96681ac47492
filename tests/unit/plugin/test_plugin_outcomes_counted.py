"""Which requests count for a revision, and which of them as failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_vllm.loaded import Loaded
from lorafleet_vllm.outcomes import Outcome, counting
from lorafleet_vllm.served_names import ServedNames
from lorafleet_vllm.settings import RevisionPath, Volume

if TYPE_CHECKING:
    from collections.abc import Callable

VOLUME = Volume(Path("/volume"))


@dataclass
class Lora:
    lora_name: str = "t/a@abab"
    lora_int_id: int = 1
    lora_path: str = VOLUME.lora_path(RevisionPath("ab" * 32, "direct"))


def table() -> ServedNames:
    names = ServedNames(VOLUME, {})
    names["t/a"] = Lora()
    return names


def answering(status: int, *parts: bytes) -> Callable[..., Any]:
    async def answer(send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return answer


async def raising(send: Any) -> None:
    raise RuntimeError("a handler's own fault")


async def departing(send: Any) -> None:
    raise asyncio.CancelledError  # what vLLM does when the client is gone


CASES = {
    "an answer": (answering(200, b"{}"), Outcome(1, 0)),
    "a stream": (answering(200, b'data: {"choices"', b"data: [DONE]"), Outcome(1, 0)),
    "an error of the server": (answering(500, b"{}"), Outcome(1, 1)),
    "an overloaded server": (answering(503), Outcome(1, 1)),
    "a stream that breaks off": (
        answering(200, b"data: {}", b'data: {"error": {"code": 500}}'),
        Outcome(1, 1),
    ),
    "a handler that raises": (raising, Outcome(1, 1)),
    "a wrong request": (answering(400, b"{}"), Outcome(0, 0)),
    "a client that goes away": (departing, Outcome(0, 0)),
}


async def call(names: ServedNames, answer: Any, headers: Any = (), model: str = "t/a") -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def handler() -> None:
            _ = names[model] if model else None
            _ = names[model] if model else None  # twice in one request counts once

        await asyncio.create_task(handler())  # as vLLM's handlers run, beside a wait for the client
        assert names.holders(1) == bool(model)
        await answer(send)

    async def send(message: Any) -> None:
        assert names.holders(1) == bool(model), "held until the answer is out"

    scope = {"type": "http", "headers": list(headers)}
    await asyncio.gather(counting(app)(scope, None, send), return_exceptions=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("sentence", CASES)
async def test_a_request_counts_by_how_it_ends(sentence: str) -> None:
    names = table()
    answer, expected = CASES[sentence]
    await call(names, answer)
    assert names.outcome(1) == expected
    assert names.holders(1) == 0


async def test_requests_of_the_sidecar_and_of_others_count_for_nothing() -> None:
    names = table()
    await call(names, answering(500), headers=[(b"X-Lorafleet-Probe", b"1")])
    await call(names, answering(500), model="")
    assert names.outcome(1) == Outcome(0, 0)


async def test_an_unloaded_revision_takes_its_figures_along() -> None:
    names = table()
    await call(names, answering(200))
    names.forget(Loaded("t/a", "sha256:" + "ab" * 32, "direct", names["t/a"]))
    assert names.outcome(1) == Outcome(0, 0)


async def test_what_is_no_http_request_goes_through_untouched() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await counting(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
