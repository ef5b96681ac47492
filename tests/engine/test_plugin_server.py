"""The control socket of a real API server: loads, names, drains, and every answer its own adapter's."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tiny_models
from engine_server import SERVED
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from pathlib import Path

    from engine_server import EngineServer

TOKENS = 6
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Five tenants' adapters and two updates of the first."""
    root = tmp_path_factory.mktemp("tenants")
    return tiny_models.make_adapters(root, "a", "b", "c", "d", "e", "a2", "a3")


@pytest.fixture(scope="module")
def digests(server: EngineServer, adapters: dict[str, Path]) -> dict[str, str]:
    return {name: server.arena.add(path) for name, path in adapters.items()}


@pytest.fixture(scope="module")
def answers(server: EngineServer, adapters: dict[str, Path]) -> dict[str, str]:
    """What stock vLLM answers with each adapter, and with none."""
    expected = {SERVED: server.complete(SERVED, PROMPT)}
    for name, path in adapters.items():
        server.load_stock(f"stock-{name}", path)
        expected[name] = server.complete(f"stock-{name}", PROMPT)
        server.api.post("/v1/unload_lora_adapter", json={"lora_name": f"stock-{name}"})
    assert len(set(expected.values())) == len(expected), "the adapters must be told apart"
    return expected


@pytest.fixture(autouse=True)
def _unloaded(server: EngineServer) -> None:
    """Leave nothing of an earlier test in the engine."""
    state = server.read("state")
    for name in state["served"]:
        server.ask("unpublish", served_name=name)
    for lora_int_id in state["revisions"]:
        server.ask("pin", lora_int_id=int(lora_int_id), pinned=False)
        server.ask("unload", lora_int_id=int(lora_int_id))


def worker(server: EngineServer) -> dict[str, Any]:
    found: dict[str, Any] = server.read("state")["workers"][0]
    return found


def test_the_handshake_says_who_the_engine_is(server: EngineServer) -> None:
    shake = server.read("handshake")
    assert shake["compat"] == "ok"
    assert shake["lora_enabled"] is True
    assert shake["base_models"] == [SERVED]
    assert shake["api_servers"] == 1
    assert shake["pid"] == server.process.pid
    assert server.read("handshake")["instance"] == shake["instance"]
    assert (server.volume / "run" / "engine.sock").stat().st_mode & 0o777 == 0o660


def test_the_profile_is_the_api_servers_view(server: EngineServer) -> None:
    profile = server.read("profile")
    assert profile["base_model"] == SERVED
    assert profile["max_lora_rank"] == 8
    assert len(profile["modules"]) == 16


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_tokens_equal_stock_before_and_after_ten_evictions(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str], loader: str
) -> None:
    server.serve("t/a", digests["a"], loader)
    assert server.complete("t/a", PROMPT) == answers["a"]
    for name in ("b", "c", "d"):
        server.serve(f"t/{name}", digests[name])
    before = worker(server)
    for _ in range(10):
        for name in ("b", "c", "d"):
            assert server.complete(f"t/{name}", PROMPT) == answers[name]
        assert server.complete("t/a", PROMPT) == answers["a"]
    after = worker(server)
    assert after["rebuilds"] - before["rebuilds"] >= 10
    assert after["loads"] == before["loads"]
    assert after["offloads"] == before["offloads"]


async def test_round_robin_gives_each_request_its_own_adapter(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str]
) -> None:
    names = ["a", "b", "c", "d", "e"]
    before = worker(server)
    for index, name in enumerate(names):
        server.serve(f"t/{name}", digests[name], ["direct", "device"][index % 2])
    gate = asyncio.Semaphore(8)

    async def one(client: httpx.AsyncClient, name: str) -> tuple[str, str]:
        async with gate:
            body = {"model": f"t/{name}", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return name, answer.json()["choices"][0]["text"]

    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        found = await asyncio.gather(*(one(client, names[n % 5]) for n in range(200)))
    assert [text for _, text in found] == [answers[name] for name, _ in found]
    after = worker(server)
    assert len(after["host"]) <= 3
    loaded = after["loads"] - before["loads"]
    assert loaded == 5
    brought_in = loaded + after["rebuilds"] - before["rebuilds"]
    assert brought_in - (after["evictions"] - before["evictions"]) == len(after["host"])


async def test_a_switch_under_load_mixes_no_revisions(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str]
) -> None:
    old = server.serve("t/a", digests["a"])
    assert server.complete("t/a", PROMPT) == answers["a"]  # fills the prefix cache
    long = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0, "ignore_eos": True}
    reference = server.complete(f"t/a@{digests['a'][7:19]}", **long)
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        running = [
            asyncio.create_task(client.post("/v1/completions", json={"model": "t/a", **long}))
            for _ in range(8)
        ]
        while (await asyncio.to_thread(in_flight, server, old)) < 8:
            await asyncio.sleep(0.05)
        new = await asyncio.to_thread(server.serve, "t/a", digests["a2"])
        assert await asyncio.to_thread(server.complete, "t/a", PROMPT) == answers["a2"]
        state = await asyncio.to_thread(server.read, "state")
        assert state["served"] == {"t/a": new}
        busy = await asyncio.to_thread(server.control.post, "/v1/unload", json={"lora_int_id": old})
        assert busy.status_code == 409
        assert busy.json()["error"] == f"adapter {old} has 8 requests in flight"
        texts = [(await task).json()["choices"][0]["text"] for task in running]
    assert texts == [reference] * 8
    while in_flight(server, old):
        await asyncio.sleep(0.05)
    server.ask("unload", lora_int_id=old)
    assert old not in worker(server)["host"]
    assert server.complete("t/a", PROMPT) == answers["a2"]


def in_flight(server: EngineServer, lora_int_id: int) -> int:
    count: int = server.read("state")["revisions"][str(lora_int_id)]["in_flight"]
    return count


def test_a_stream_that_the_client_drops_is_no_longer_in_flight(
    server: EngineServer, digests: dict[str, str]
) -> None:
    lora_int_id = server.serve("t/a", digests["a"])
    body = {"model": "t/a", "prompt": PROMPT, "max_tokens": 900, "stream": True, "ignore_eos": True}
    with server.api.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()  # closing it would close the connection
        first = next(lines)
        assert first.startswith("data: {"), first
        assert "choices" in first, first
        assert in_flight(server, lora_int_id) == 1
    while in_flight(server, lora_int_id):
        pass
    server.ask("unpublish", served_name="t/a")
    server.ask("unload", lora_int_id=lora_int_id)


def test_a_refused_second_revision_leaves_the_first(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str], tmp_path: Path
) -> None:
    first = server.serve("t/a", digests["a"])
    bad = tiny_models.make_adapter(
        tmp_path / "bad", {"model.layers.0.self_attn.q_proj": (128, 256)}, seed=9
    )
    refused = server.control.post(
        "/v1/load",
        json={"served_name": "t/a", "digest": server.arena.add(bad), "loader": "direct"},
    )
    assert refused.status_code == 422
    assert "lora_A has shape [4, 128], expected linear [4, 256]" in refused.json()["error"]
    state = server.read("state")
    assert state["served"] == {"t/a": first}
    assert list(state["revisions"]) == [str(first)]
    assert server.complete("t/a", PROMPT) == answers["a"]


def test_the_same_revision_is_loaded_once(server: EngineServer, digests: dict[str, str]) -> None:
    body = {"served_name": "t/a", "digest": digests["a"], "loader": "direct"}
    loads = worker(server)["loads"]
    assert server.ask("load", **body)["lora_int_id"] == server.ask("load", **body)["lora_int_id"]
    other = server.ask("load", **{**body, "served_name": "t/other"})["lora_int_id"]
    assert other != server.ask("load", **body)["lora_int_id"]
    assert worker(server)["loads"] - loads == 2


def test_removal_frees_slot_host_and_name(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str]
) -> None:
    lora_int_id = server.serve("t/a", digests["a"], "device")
    server.complete("t/a", PROMPT)
    published = server.control.post("/v1/unload", json={"lora_int_id": lora_int_id})
    assert published.status_code == 409
    assert published.json()["error"] == f"adapter {lora_int_id} is published as t/a"
    assert worker(server)["pinned_host_bytes"] > 0
    assert server.ask("unpublish", served_name="t/a") == {"previous": lora_int_id}
    assert server.ask("unpublish", served_name="t/a") == {"previous": None}
    server.ask("unload", lora_int_id=lora_int_id)
    server.ask("unload", lora_int_id=lora_int_id)  # idempotent
    state = server.read("state")
    assert (state["served"], state["revisions"]) == ({}, {})
    assert lora_int_id not in state["workers"][0]["host"] + state["workers"][0]["gpu"]
    assert state["workers"][0]["pinned_host_bytes"] == 0
    gone = server.api.post("/v1/completions", json={"model": "t/a", "prompt": PROMPT})
    assert gone.status_code == 404


def test_clients_see_served_names_only(
    server: EngineServer, digests: dict[str, str], adapters: dict[str, Path]
) -> None:
    server.load_stock("plain", adapters["b"])
    server.serve("t/a", digests["a"])
    names = [card["id"] for card in server.api.get("/v1/models").json()["data"]]
    assert names == [SERVED, "plain", "t/a"]
    answer = server.api.post(
        "/v1/completions", json={"model": "t/a", "prompt": PROMPT, "max_tokens": 2}
    )
    assert answer.json()["model"] == "t/a"
    server.api.post("/v1/unload_lora_adapter", json={"lora_name": "plain"})


async def test_vllms_metrics_tell_routers_the_served_names(
    server: EngineServer, digests: dict[str, str], adapters: dict[str, Path]
) -> None:
    """The LoRA scorer of the Gateway API inference extension looks for the request's `model`."""
    server.load_stock("plain", adapters["b"])
    server.serve("t/a", digests["a"])
    long = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        running = [
            asyncio.create_task(client.post("/v1/completions", json={"model": name, **long}))
            for name in ("t/a", "plain")
        ]
        seen: set[str] = set()
        while seen != {"t/a", "plain"}:
            assert not all(task.done() for task in running), seen
            info = lora_info(await client.get("/metrics"))
            seen = set(filter(None, info["running_lora_adapters"].split(",")))
            assert seen <= {"t/a", "plain"}
        for task in running:
            assert (await task).status_code == 200
        assert lora_info(await client.get("/metrics"))["max_lora"] == "2"
    server.api.post("/v1/unload_lora_adapter", json={"lora_name": "plain"})


def lora_info(answer: httpx.Response) -> dict[str, str]:
    """Return the labels of the newest vllm:lora_requests_info, as an endpoint picker finds them."""
    series = [
        sample
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    ]
    newest = max(series, key=lambda sample: sample.value, default=None)
    return newest.labels if newest else {"running_lora_adapters": ""}


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_a_revision_is_verified_with_or_without_a_slot(
    server: EngineServer, digests: dict[str, str], loader: str
) -> None:
    before = server.read("state")["workers"][0]["slot_evictions"]
    ids = []
    for name in ("a", "b", "c"):  # max_loras is 2: the last has no slot
        body = {"served_name": f"t/{name}", "digest": digests[name], "loader": loader}
        ids.append(server.ask("load", **body)["lora_int_id"])
        answer = server.ask("verify", lora_int_id=ids[-1])
        assert (answer["verified"], answer["modules"]) == (True, 14)
    state = server.read("state")
    assert [state["revisions"][str(each)]["verified"] for each in ids] == [True] * 3
    assert state["workers"][0]["slot_evictions"] == before
    assert server.control.post("/v1/verify", json={"lora_int_id": 999}).status_code == 404


def test_a_slot_that_differs_from_the_image_is_told_in_one_line(
    server: EngineServer, digests: dict[str, str]
) -> None:
    lora_int_id = server.ask("load", served_name="t/a", digest=digests["a"], loader="direct")[
        "lora_int_id"
    ]
    folder = server.volume / "revisions" / digests["a"].removeprefix("sha256:")
    whole = (folder / "revision.json").read_text()
    content = json.loads(whole)
    gate, up = (content["modules"][f"model.layers.1.mlp.{p}_proj"] for p in ("gate", "up"))
    gate["proof"], up["proof"] = up["proof"], gate["proof"]
    try:
        (folder / "revision.json").write_text(json.dumps(content))
        refused = server.control.post("/v1/verify", json={"lora_int_id": lora_int_id})
    finally:
        (folder / "revision.json").write_text(whole)
    assert refused.status_code == 409
    assert refused.json()["error"] == (
        f"adapter t/a@{digests['a'][7:19]}: model.layers.1.mlp.gate_proj: lora_A in the engine's "
        "slot is not what was staged: it is that of model.layers.1.mlp.up_proj"
    )
    assert not server.read("state")["revisions"][str(lora_int_id)]["verified"]


def test_names_that_are_taken_are_refused(
    server: EngineServer, digests: dict[str, str], adapters: dict[str, Path]
) -> None:
    base = {"served_name": SERVED, "digest": digests["a"], "loader": "direct"}
    refused = server.control.post("/v1/load", json=base)
    assert (refused.status_code, refused.json()["error"]) == (
        409,
        f"served name {SERVED} is the base model's",
    )
    server.load_stock("plain", adapters["b"])
    lora_int_id = server.ask("load", **{**base, "served_name": "plain"})["lora_int_id"]
    taken = server.control.post(
        "/v1/publish", json={"served_name": "plain", "lora_int_id": lora_int_id}
    )
    assert taken.json()["error"] == "served name plain is taken by an adapter that is not ours"
    server.api.post("/v1/unload_lora_adapter", json={"lora_name": "plain"})


def test_pins_survive_evictions_and_keep_a_place_for_others(
    server: EngineServer, digests: dict[str, str], answers: dict[str, str]
) -> None:
    ids = {name: server.serve(f"t/{name}", digests[name]) for name in ("a", "b", "c", "d", "e")}
    server.ask("pin", lora_int_id=ids["a"], pinned=True)  # it was evicted: pinning brings it back
    server.ask("pin", lora_int_id=ids["b"], pinned=True)
    full = server.control.post("/v1/pin", json={"lora_int_id": ids["c"], "pinned": True})
    assert full.status_code == 409
    assert "one place must stay for the others" in full.json()["error"]
    for name in random.Random(0).sample(["c", "d", "e"] * 4, 12):
        assert server.complete(f"t/{name}", PROMPT) == answers[name]
    assert {ids["a"], ids["b"]} <= set(worker(server)["host"])
    assert server.read("state")["revisions"][str(ids["a"])]["pinned"] is True
    assert server.complete("t/a", PROMPT) == answers["a"]


BODIES: dict[str, tuple[str, bytes, int, str]] = {
    "not JSON": ("load", b"{", 400, "the body is not JSON"),
    "not an object": ("load", b"[]", 400, "the body must be a JSON object"),
    "missing name": ("load", b"{}", 400, "served_name must be a non-empty string"),
    "bad digest": (
        "load",
        b'{"served_name": "t/a", "digest": "../../etc", "loader": "direct"}',
        400,
        "is not sha256:<64 hex digits>",
    ),
    "bad loader": (
        "load",
        b'{"served_name": "t/a", "digest": "sha256:%s", "loader": "../x"}' % (b"0" * 64),
        400,
        "is not one of direct, device",
    ),
    "boolean id": ("unload", b'{"lora_int_id": true}', 400, "lora_int_id must be an integer"),
    "unknown id": (
        "publish",
        b'{"served_name": "t/a", "lora_int_id": 999}',
        404,
        "no adapter 999 is loaded",
    ),
    "huge": ("load", b" " * 70_000, 413, "the body is above 65536 bytes"),
}


@pytest.mark.parametrize("case", BODIES)
def test_wrong_requests_get_one_line_and_change_nothing(server: EngineServer, case: str) -> None:
    call, body, status, message = BODIES[case]
    answer = server.control.post(f"/v1/{call}", content=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert server.read("state")["revisions"] == {}
