"""A server that speaks like the Hugging Face hub: commits, gated repositories, a CDN."""

import json
from typing import Any

import pytest
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.base import Source
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer
from source_builders import FAST, adapter, data_of, read_all

OLD, NEW = "a" * 40, "b" * 40
TOKEN = {"HF_TOKEN": b"hf_canary"}


def hub() -> LyingServer:
    server = LyingServer(etag="content")
    for seed, commit in enumerate((OLD, NEW)):
        files = adapter(elements=1 << 17, seed=seed)
        server.files[f"/org/sql/resolve/{commit}/adapter_config.json"] = files[
            "adapter_config.json"
        ]
        server.files[f"/cdn/{commit}"] = files["adapter_model.safetensors"]
        weights = f"/org/sql/resolve/{commit}/adapter_model.safetensors"
        server.redirects[weights] = f"/cdn/{commit}?X-Amz-Signature=abc"
    point(server, OLD)
    return server


def point(server: LyingServer, commit: str) -> None:
    server.files["/api/models/org/sql/revision/main"] = json.dumps({"sha": commit}).encode()


def opened(server: LyingServer, secret: dict[str, bytes] | None = None, **hub: Any) -> Source:
    spec: dict[str, Any] = {"huggingFace": {"repo": "org/sql", "endpoint": server.url, **hub}}
    if secret:
        spec["credentialsSecretRef"] = {"name": "hf-token"}
    return open_source(spec, namespace="team-a", name="sql", settings=FAST, secret=secret)


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await source.resolve()
    await source.aclose()
    assert "canary" not in str(caught.value)
    return str(caught.value)


async def test_a_branch_is_read_at_the_commit_it_has_now() -> None:
    async with hub().running() as server:
        source = opened(server)
        old = await source.resolve()
        assert old.revision == OLD
        assert old.uri == "hf://org/sql@main"
        point(server, NEW)
        assert await read_all(old) == data_of(server.files[f"/cdn/{OLD}"]), "commits do not move"
        new = await source.resolve()
        assert new.revision == NEW
        assert new.fingerprint != old.fingerprint
        assert await read_all(new) == data_of(server.files[f"/cdn/{NEW}"])
        await source.aclose()


async def test_a_commit_is_not_asked_for() -> None:
    async with hub().running() as server:
        source = opened(server, revision=NEW)
        assert (await source.resolve()).revision == NEW
        assert not any(request.path.startswith("/api") for request in server.requests)
        await source.aclose()


@pytest.mark.parametrize(
    ("status", "code", "secret", "error", "message"),
    [
        (401, "", None, AccessDenied, "401 from {host} for org/sql at main: no token configured"),
        (
            401,
            "RepoNotFound",
            TOKEN,
            AccessDenied,
            "401 from {host} for org/sql at main: Secret team-a/hf-token key HF_TOKEN was sent",
        ),
        (
            403,
            "GatedRepo",
            None,
            AccessDenied,
            "403 from {host} for org/sql at main: no token configured; "
            "the repository is gated, ask for access on its page",
        ),
        (404, "RevisionNotFound", None, SourceNotFound, "{host} has no org/sql at main"),
        (404, "", None, SourceNotFound, "{host} has no org/sql at main"),
        (503, "", None, SourceUnavailable, "hf://org/sql@main: HTTP status 503"),
    ],
)
async def test_refusals_are_one_line_each(
    status: int,
    code: str,
    secret: dict[str, bytes] | None,
    error: type[LorafleetError],
    message: str,
) -> None:
    async with LyingServer(status=status, extra_headers={"X-Error-Code": code}).running() as server:
        text = await refused(opened(server, secret), error)
        assert text == message.format(host=server.url.removeprefix("http://"))


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"sha": "../../x"}', b"<html>"])
async def test_an_answer_without_a_commit_is_one_line(answer: bytes) -> None:
    async with hub().running() as server:
        server.files["/api/models/org/sql/revision/main"] = answer
        text = await refused(opened(server), SourceUnavailable)
    assert text == "hf://org/sql@main: the hub does not name the revision's commit"


@pytest.mark.parametrize(
    "spec",
    [
        {"repo": "../etc"},
        {"repo": "org/sql/x"},
        {"repo": "org/sql?x"},
        {"revision": "../../x"},
        {"revision": "a b"},
        {"path": "../x"},
        {"endpoint": "http://user:canary@hub.example"},
    ],
)
def test_names_out_of_bounds_are_refused_at_once(spec: dict[str, str]) -> None:
    with pytest.raises(PathNotAllowed) as caught:
        opened(LyingServer(), **spec)
    assert "canary" not in str(caught.value)
