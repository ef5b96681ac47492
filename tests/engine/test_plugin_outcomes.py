"""How requests of a revision end on a real API server: counted by outcome, aborted, in flight."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import tiny_models
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from engine_server import EngineServer

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
LONG = {"max_tokens": 900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outcomes") / "adapter"
    return tiny_models.make_adapter(path, tiny_models.dense_modules(), seed=40, rank=4, alpha=16)


@pytest.fixture(scope="module")
def revision(server: EngineServer, adapter: Path) -> int:
    return server.serve("t/counted", server.arena.add(adapter))


def entry(server: EngineServer, revision: int) -> dict[str, Any]:
    found: dict[str, Any] = server.read("state")["revisions"][str(revision)]
    return found


def counts(server: EngineServer, revision: int) -> tuple[int, int]:
    found = entry(server, revision)
    return found["requests"], found["errors"]


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
    server.ask("publish", served_name="t/counted", lora_int_id=revision)  # as it was found


LORA_ENDPOINTS = [
    ("POST", "/v1/load_lora_adapter", {"lora_name": "evil", "lora_path": "PATH"}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "t/counted"}),
    ("POST", "/adapters", {"name": "evil", "src": "PATH"}),
    ("DELETE", "/adapters/plain", None),
    ("POST", "/v1/load_lora_adapter/", {"lora_name": "evil", "lora_path": "PATH"}),
]


def test_no_other_pod_loads_or_unloads_by_vllms_own_endpoints(
    server: EngineServer, revision: int, adapter: Path
) -> None:
    """vLLM takes the address of a client behind a proxy on loopback from this header."""
    expected = server.complete("t/counted", PROMPT)
    other_pod = {"X-Forwarded-For": "10.1.2.3"}
    before = server.api.get("/v1/models").json()["data"]
    for method, path, body in LORA_ENDPOINTS:
        content = json.dumps(body).replace("PATH", str(adapter)) if body else None
        headers = {**other_pod, "Content-Type": "application/json"}
        answer = server.api.request(method, path, content=content, headers=headers)
        assert answer.status_code == 403, (path, answer.text)
        assert "loaded by its sidecar" in answer.json()["error"]["message"]
    assert [card["id"] for card in server.api.get("/v1/models").json()["data"]] == [
        card["id"] for card in before
    ]
    request = {"model": "t/counted", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    answer = server.api.post("/v1/completions", json=request, headers=other_pod)
    assert answer.json()["choices"][0]["text"] == expected
    # From the pod itself they are vLLM's own, SageMaker's names among them.
    content = {"name": "mine", "src": str(adapter)}
    assert server.api.post("/adapters", json=content).status_code == 200
    assert server.complete("mine", PROMPT) == expected, "the same adapter by vLLM's own way"
    assert server.api.delete("/adapters/mine").status_code == 200


def test_a_control_socket_that_is_held_up_costs_the_sidecar_and_clients_nothing(
    server: EngineServer, revision: int
) -> None:
    """Two hundred connections: silent, half a head, half a body, noise, a head without an end."""
    expected = server.complete("t/counted", PROMPT)
    head = b"POST /v1/unpublish HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n"
    openings = [b"", head, head + b"\r\n{", b"\xff" * 512, b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000]
    files = psutil.Process(server.process.pid).num_fds()
    held = []
    for number in range(200):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(server.volume / "run" / "engine.sock"))
        with contextlib.suppress(OSError):
            connection.sendall(openings[number % len(openings)])
        held.append(connection)
        if number % 20 == 0:
            assert server.read("state")["served"].keys() == {"t/counted"}
            assert server.complete("t/counted", PROMPT) == expected
    assert psutil.Process(server.process.pid).num_fds() < files + 80
    for connection in held:  # each is hung up on, without a word of its own
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
        connection.close()
    assert server.read("state")["served"].keys() == {"t/counted"}
    big = server.control.post("/v1/publish", content=b"{" + b" " * 200_000)
    assert big.status_code == 413
