"""How requests of a revision end on a real API server: counted by outcome, aborted, in flight."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine_server import EngineServer

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def revision(server: EngineServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("outcomes") / "adapter"
    tiny_models.make_adapter(path, tiny_models.dense_modules(), seed=40, rank=4, alpha=16)
    return server.serve("t/counted", server.arena.add(path))


def entry(server: EngineServer, revision: int) -> dict[str, Any]:
    found: dict[str, Any] = server.read("state")["revisions"][str(revision)]
    return found


def counts(server: EngineServer, revision: int) -> tuple[int, int]:
    found = entry(server, revision)
    return found["requests"], found["errors"]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_answers_count_and_what_is_the_clients_fault_or_the_sidecars_does_not(
    server: EngineServer, revision: int
) -> None:
    before = counts(server, revision)
    server.complete("t/counted", PROMPT)
    with server.api.stream(
        "POST",
        "/v1/completions",
        json={"model": "t/counted", "prompt": PROMPT, "stream": True, "max_tokens": 3},
    ) as answer:
        assert answer.status_code == 200
        answer.read()
    wrong = {"model": "t/counted", "prompt": PROMPT, "max_tokens": -1}
    assert server.api.post("/v1/completions", json=wrong).status_code == 400
    ours = server.api.post(
        "/v1/completions",
        json={"model": "t/counted", "prompt": PROMPT, "max_tokens": 1},
        headers={"X-Lorafleet-Probe": "1"},
    )
    assert ours.status_code == 200
    with server.api.stream(  # a client that goes away
        "POST",
        "/v1/completions",
        json={"model": "t/counted", "prompt": PROMPT, "stream": True, **LONG},
    ) as answer:
        next(answer.iter_lines())
    eventually(lambda: entry(server, revision)["in_flight"] == 0)
    after = counts(server, revision)
    assert after[0] - before[0] in (2, 3)  # the one that went away had its status already
    assert after[1] == before[1]


@pytest.mark.parametrize("stream", [True, False])
def test_a_hidden_revision_is_in_flight_until_its_requests_are_aborted(
    server: EngineServer, revision: int, stream: bool
) -> None:
    server.ask("publish", served_name="t/counted", lora_int_id=revision)
    got: list[str] = []

    def request() -> None:
        body = {"model": "t/counted", "prompt": PROMPT, "stream": stream, **LONG}
        with server.api.stream("POST", "/v1/completions", json=body) as answer:
            got.extend(answer.iter_lines())

    running = threading.Thread(target=request)
    running.start()
    eventually(lambda: entry(server, revision)["in_flight"] == 1)
    published = server.control.post("/v1/abort", json={"lora_int_id": revision})
    assert published.status_code == 409
    server.ask("unpublish", served_name="t/counted")
    if stream:
        eventually(lambda: len(got) > 2)
        assert entry(server, revision)["in_flight"] == 1
    assert server.control.post("/v1/unload", json={"lora_int_id": revision}).status_code == 409
    assert server.ask("abort", lora_int_id=revision)["aborted"] == 1
    running.join(60)
    assert not running.is_alive()
    last = [
        json.loads(line.removeprefix("data: ")) for line in got if line[-6:] != "[DONE]" and line
    ]
    assert last[-1]["choices"][0]["finish_reason"] == "abort"
    eventually(lambda: entry(server, revision)["in_flight"] == 0)
    assert server.ask("abort", lora_int_id=revision)["aborted"] == 0
