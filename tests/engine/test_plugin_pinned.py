"""One revision by its name on a real API server: its answers and its cache, or nothing at all.

The server leaves names unchecked (VLLM_SKIP_MODEL_NAME_VALIDATION): its base model would answer to any.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tiny_models
from engine_server import SERVED
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from engine_server import EngineServer

WORDS = " ".join(f"t{number}" for number in range(5, 25))
LONG = [5 + number % 300 for number in range(400)]
"""More than three blocks of vLLM's cache on the CPU."""
NEAR = 0.02
"""Nats that the logprobs of one token may differ by when less of its prompt was computed at once."""


@pytest.fixture(scope="module")
def server(start_server: Callable[..., EngineServer]) -> EngineServer:
    template = "{% for each in messages %}{{ each['content'] }} {% endfor %}"
    return start_server("--chat-template", template, VLLM_SKIP_MODEL_NAME_VALIDATION="1")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two revisions of one adapter."""
    return tiny_models.make_adapters(tmp_path_factory.mktemp("revisions"), "old", "new")


@dataclass
class Revisions:
    """The names and digests of both, on the server."""

    server: EngineServer
    digests: dict[str, str]

    def name(self, which: str) -> str:
        """Return the pinned name of a revision."""
        return f"t/a@{self.digests[which][7:19]}"

    def prepare(self, which: str) -> int:
        """Load and prove it beside what is served."""
        body = {"served_name": "t/a", "digest": self.digests[which], "loader": "direct"}
        lora_int_id: int = self.server.ask("load", **body)["lora_int_id"]
        self.server.ask("verify", lora_int_id=lora_int_id)
        return lora_int_id

    def publish(self, which: str) -> int:
        """Let `t/a` mean it."""
        lora_int_id = self.prepare(which)
        self.server.ask("publish", served_name="t/a", lora_int_id=lora_int_id)
        return lora_int_id


@pytest.fixture(scope="module")
def staged(server: EngineServer, adapters: dict[str, Path]) -> dict[str, str]:
    return {name: server.arena.add(path) for name, path in adapters.items()}


@pytest.fixture
def revisions(server: EngineServer, staged: dict[str, str]) -> Revisions:
    """Both are staged, none is loaded."""
    state = server.read("state")
    for name in state["served"]:
        server.ask("unpublish", served_name=name)
    for lora_int_id in state["revisions"]:
        server.ask("unload", lora_int_id=int(lora_int_id))
    return Revisions(server, staged)


def completion(server: EngineServer, model: str) -> tuple[int, Any]:
    body = {"model": model, "prompt": WORDS, "max_tokens": 6, "temperature": 0}
    return text_of(server.api.post("/v1/completions", json=body), lambda a: a["choices"][0]["text"])


def chat(server: EngineServer, model: str) -> tuple[int, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": WORDS}], "temperature": 0}
    answer = server.api.post("/v1/chat/completions", json={**body, "max_tokens": 6})
    return text_of(answer, lambda a: a["choices"][0]["message"]["content"])


def response(server: EngineServer, model: str) -> tuple[int, Any]:
    body = {"model": model, "input": WORDS, "max_output_tokens": 16, "temperature": 0}
    answer = server.api.post("/v1/responses", json={**body, "store": False})
    return text_of(answer, lambda a: a["output"][-1]["content"][0]["text"])


def text_of(answer: Any, text: Callable[[Any], Any]) -> tuple[int, Any]:
    """Return the status, and the text and what answered it or the error's line."""
    found = answer.json()
    if not answer.is_success:
        return answer.status_code, found["error"]["message"]
    return answer.status_code, (text(found), found["model"])


ENDPOINTS = {"completions": completion, "chat": chat, "responses": response}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_answers_with_the_revision_that_was_asked_for(
    server: EngineServer, revisions: Revisions, adapters: dict[str, Path], endpoint: str
) -> None:
    ask, texts = ENDPOINTS[endpoint], {}
    for which, path in adapters.items():
        server.load_stock("stock", path)
        status, (texts[which], _) = ask(server, "stock")
        assert status == 200
        server.api.post("/v1/unload_lora_adapter", json={"lora_name": "stock"})
    base = ask(server, SERVED)[1][0]
    assert len({*texts.values(), base}) == 3
    revisions.publish("old")
    revisions.prepare("new")
    old, new, nobodys = revisions.name("old"), revisions.name("new"), "t/a@0123456789ab"
    assert ask(server, "t/a") == (200, (texts["old"], "t/a"))
    assert ask(server, old) == (200, (texts["old"], old))
    assert ask(server, new) == (200, (texts["new"], new))
    full = f"t/a@{revisions.digests['new']}"
    assert ask(server, full) == (200, (texts["new"], full))
    here = ", ".join(each.partition("@")[2] for each in (old, new))
    line = f"The model `{nobodys}` does not exist: of t/a this engine has {here}."
    assert ask(server, nobodys) == (404, line)


def test_a_stream_and_a_tokenizer_know_pinned_names(
    server: EngineServer, revisions: Revisions
) -> None:
    revisions.publish("old")
    body = {"prompt": WORDS, "max_tokens": 6, "temperature": 0, "stream": True}
    for name in ("t/a", revisions.name("old")):
        answer = server.api.post("/v1/completions", json={"model": name, **body})
        assert answer.text.count(f'"model":"{name}"') >= 6, answer.text
    tokens = server.api.post("/tokenize", json={"model": revisions.name("old"), "prompt": WORDS})
    assert tokens.json()["count"] == 20
    for path in ("/tokenize", "/v1/completions"):
        answer = server.api.post(path, json={"model": revisions.name("new"), "prompt": WORDS})
        assert answer.status_code == 404, answer.text


def test_a_drained_revision_answers_until_the_drain_is_over(
    server: EngineServer, revisions: Revisions
) -> None:
    old = revisions.publish("old")
    _, (text, _) = completion(server, "t/a")
    with unread(server, "t/a") as running:
        new = revisions.publish("new")
        with unread(server, revisions.name("old")):
            assert in_flight(server, old) == 2
        assert completion(server, revisions.name("old")) == (200, (text, revisions.name("old")))
        while in_flight(server, old) > 1:
            pass  # the client has gone
        refused = server.control.post("/v1/unload", json={"lora_int_id": old})
        assert refused.status_code == 409
        assert completion(server, revisions.name("old"))[0] == 200, "it stays until it is unloaded"
        server.ask("abort", lora_int_id=old)
        status, line = completion(server, revisions.name("old"))
        there = revisions.name("new").partition("@")[2]
        assert (status, line.partition(": ")[2]) == (404, f"of t/a this engine has {there}.")
        assert running.read().endswith(b"data: [DONE]\n\n")
    while in_flight(server, old):
        pass
    server.ask("publish", served_name="t/a", lora_int_id=old)  # the way back
    assert completion(server, revisions.name("old"))[1][0] == text
    assert in_flight(server, new) == 0


@contextmanager
def unread(server: EngineServer, model: str) -> Iterator[httpx.Response]:
    """An answer that cannot be sent before it is read: of a megabyte, into a buffer of a few KiB."""
    few = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = {"model": model, "prompt": WORDS, "max_tokens": 480, "ignore_eos": True, "logprobs": 20}
    transport = httpx.HTTPTransport(socket_options=[few])
    with (
        httpx.Client(base_url=server.url, timeout=300, transport=transport) as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        yield answer


def in_flight(server: EngineServer, lora_int_id: int) -> int:
    count: int = server.read("state")["revisions"][str(lora_int_id)]["in_flight"]
    return count


def test_hidden_names_hide_their_revisions(server: EngineServer, revisions: Revisions) -> None:
    revisions.publish("old")
    assert completion(server, revisions.name("old"))[0] == 200
    server.ask("unpublish", served_name="t/a")
    assert completion(server, revisions.name("old"))[0] == 404
    revisions.prepare("old")
    assert completion(server, revisions.name("old"))[0] == 200


def test_what_is_loaded_and_not_proved_answers_to_nobody(
    server: EngineServer, revisions: Revisions
) -> None:
    revisions.publish("old")
    body = {"served_name": "t/a", "digest": revisions.digests["new"], "loader": "direct"}
    lora_int_id = server.ask("load", **body)["lora_int_id"]
    assert completion(server, revisions.name("new"))[0] == 404
    server.ask("verify", lora_int_id=lora_int_id)
    assert completion(server, revisions.name("new"))[0] == 200


async def test_one_revision_by_both_loaders_in_one_batch(
    server: EngineServer, revisions: Revisions
) -> None:
    """vLLM compares LoRARequests by their names: two of one name would be one in its batch."""
    direct = revisions.publish("old")
    body = {"served_name": "t/a", "digest": revisions.digests["old"], "loader": "device"}
    device = server.ask("load", **body)["lora_int_id"]
    server.ask("verify", lora_int_id=device)
    _, (text, _) = completion(server, "t/a")
    ask = {"prompt": WORDS, "max_tokens": 6, "temperature": 0}
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        names = ["t/a", revisions.name("old")] * 8
        sent = (client.post("/v1/completions", json={"model": name, **ask}) for name in names)
        answers = await asyncio.gather(*sent)
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {text}
    state = server.read("state")["revisions"]
    assert [state[str(each)]["requests"] for each in (direct, device)] == [9, 8]


def test_pinned_names_are_listed_and_counted_nowhere(
    server: EngineServer, revisions: Revisions
) -> None:
    revisions.publish("old")
    revisions.prepare("new")
    for which in ("old", "new"):
        assert completion(server, revisions.name(which))[0] == 200
    names = [card["id"] for card in server.api.get("/v1/models").json()["data"]]
    assert names == [SERVED, "t/a"]
    assert "t/a@" not in server.api.get("/metrics").text


def test_embeddings_are_of_the_revision_that_was_asked_for(
    start_server: Callable[..., EngineServer], adapters: dict[str, Path]
) -> None:
    embedder = start_server("--runner", "pooling", "--convert", "embed")

    def embedding(model: str) -> tuple[int, Any]:
        answer = embedder.api.post("/v1/embeddings", json={"model": model, "input": WORDS})
        return text_of(answer, lambda found: tuple(found["data"][0]["embedding"]))

    made = Revisions(
        embedder, {which: embedder.arena.add(path) for which, path in adapters.items()}
    )
    made.publish("old")
    made.prepare("new")
    (_, (base, _)), (_, (plain, named)) = embedding(SERVED), embedding("t/a")
    old, new = made.name("old"), made.name("new")
    names = named == "t/a"  # vLLM 0.26 calls all of them by the base model's name
    assert embedding(old) == (200, (plain, old if names else SERVED))
    status, (other, _) = embedding(new)
    assert (status, len({base, plain, other})) == (200, 3)
    here = ", ".join(each.partition("@")[2] for each in (old, new))
    line = f"The model `t/a@0123456789ab` does not exist: of t/a this engine has {here}."
    assert embedding("t/a@0123456789ab") == (404, line)


def cached(server: EngineServer) -> int:
    """Return the tokens that vLLM's prefix cache has answered so far."""
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(server.api.get("/metrics").text)
        for sample in family.samples
        if sample.name == "vllm:prefix_cache_hits_total"
    )


def logprobs(server: EngineServer, model: str) -> tuple[list[str], list[float]]:
    """Return the greedy tokens after a long prompt, and how likely each was."""
    body = {"model": model, "prompt": LONG, "max_tokens": 6, "temperature": 0, "logprobs": 0}
    answer = server.api.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["choices"][0]["logprobs"]
    return found["tokens"], found["token_logprobs"]


def test_the_prefix_cache_never_crosses_revisions(
    server: EngineServer, revisions: Revisions, adapters: dict[str, Path]
) -> None:
    fresh = {}
    for which, path in adapters.items():  # under names that share no block with ours
        server.load_stock(f"fresh-{which}", path)
        fresh[which] = logprobs(server, f"fresh-{which}")
        server.api.post("/v1/unload_lora_adapter", json={"lora_name": f"fresh-{which}"})
    assert fresh["old"][0] != fresh["new"][0]

    def ask(model: str, which: str) -> int:
        """Return how many tokens came from the cache for the answer, which must be that revision's."""
        before = cached(server)
        tokens, found = logprobs(server, model)
        assert tokens == fresh[which][0]
        assert found == pytest.approx(fresh[which][1], abs=NEAR)
        return cached(server) - before

    old, new = revisions.name("old"), revisions.name("new")
    revisions.publish("old")
    assert ask(old, "old") == 0
    assert ask("t/a", "old") >= len(LONG) // 2, "the plain name shares the pinned one's blocks"
    revisions.prepare("new")
    assert ask(new, "new") == 0, "none of the other revision's"
    revisions.publish("new")
    assert ask("t/a", "new") >= len(LONG) // 2
    assert ask(old, "old") >= len(LONG) // 2, "its own are still there"
    assert ask("t/a", "new") >= len(LONG) // 2
    # Loaded anew, under another id, it finds what it had computed and nothing else.
    state = server.read("state")
    (first,) = (i for i, each in state["revisions"].items() if each["revision"] == old)
    server.ask("unload", lora_int_id=int(first))
    assert revisions.publish("old") != int(first)
    assert ask("t/a", "old") >= len(LONG) // 2
    assert ask(new, "new") >= len(LONG) // 2
