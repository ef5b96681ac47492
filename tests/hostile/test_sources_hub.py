"""A server that speaks as the Hugging Face hub does, which the hub's own library shows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer
from source_builders import CONFIG, FAST, adapter, data_of, read_all, sharded

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_operator.sources.base import Source

OLD, NEW = "a" * 40, "b" * 40
TOKEN = {"HF_TOKEN": b"hf_canary"}
FILES = {OLD: adapter(elements=1 << 17), NEW: adapter(elements=1 << 17, seed=1)}
DATA = {commit: data_of(files["adapter_model.safetensors"]) for commit, files in FILES.items()}


def hub(**changes: Any) -> HubServer:
    branches = {"main": OLD, "refs/pr/1": NEW, "v1.0+x": NEW}
    return HubServer(commits={**FILES}, branches=branches, **changes)


def opened(server: LyingServer, secret: dict[str, bytes] | None = None, **hub: Any) -> Source:
    spec: dict[str, Any] = {"huggingFace": {"repo": "org/sql", "endpoint": server.url, **hub}}
    if secret:
        spec["credentialsSecretRef"] = {"name": "hf-token"}
    return open_source(spec, namespace="team-a", name="sql", settings=FAST, secret=secret)


async def resolved(source: Source) -> tuple[str, bytes]:
    """Return the revision and the data."""
    try:
        found = await source.resolve()
        return found.revision, await read_all(found)
    finally:
        await source.aclose()


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await resolved(source)
    assert "canary" not in str(caught.value)
    return str(caught.value)


async def test_a_branch_is_read_at_the_commit_it_has_now() -> None:
    async with hub().running() as server:
        source = opened(server)
        old = await source.resolve()
        assert old.revision == OLD
        assert old.uri == "hf://org/sql@main"
        server.branches["main"] = NEW
        assert await read_all(old) == DATA[OLD], "commits do not move"
        new = await source.resolve()
        assert new.revision == NEW
        assert new.fingerprint != old.fingerprint
        assert await read_all(new) == DATA[NEW]
        server.commits["c" * 40] = {**FILES[NEW], "README.md": b"new"}
        server.branches["main"] = "c" * 40
        same = await source.resolve()
        assert same.revision == "c" * 40
        assert same.fingerprint == new.fingerprint, "the adapter is not in what changed"
        await source.aclose()


@pytest.mark.parametrize("revision", ["refs/pr/1", "v1.0+x", NEW])
async def test_any_kind_of_revision_is_read_at_its_commit(revision: str) -> None:
    async with hub().running() as server:
        assert await resolved(opened(server, revision=revision)) == (NEW, DATA[NEW])
        asked = [r.path for r in server.requests if r.path.startswith("/api")]
        assert len(asked) == (0 if revision == NEW else 1)
        assert all(
            f"/resolve/{NEW}/" in r.path or r.path.startswith(("/api", "/cdn"))
            for r in server.requests
        )


async def test_the_token_is_sent_to_the_hub_and_not_to_where_it_redirects() -> None:
    async with hub(token="hf_canary", prefix="/mirror").running() as server:
        source = opened(server, TOKEN, endpoint=f"{server.url}/mirror/")
        assert await resolved(source) == (OLD, DATA[OLD])
        for request in server.requests:
            sent = request.headers.get("authorization")
            assert sent == (None if "/cdn/" in request.path else "Bearer hf_canary")
        assert {
            r.headers["host"].partition(":")[0] for r in server.requests if "/cdn/" in r.path
        } == {"localhost"}


@pytest.mark.parametrize("folder", ["checkpoint-400", "lo ra/ü+1%20"])
async def test_an_adapter_may_lie_in_a_folder_of_the_repository(folder: str) -> None:
    server = hub()
    server.commits[OLD] = {f"{folder}/{name}": content for name, content in FILES[OLD].items()}
    server.commits[OLD] |= {"README.md": b"", "config.json": b"{}"}
    async with server.running():
        for path in (folder, f"{folder}/", f"{folder}/adapter_model.safetensors"):
            assert await resolved(opened(server, path=path)) == (OLD, DATA[OLD])
        assert await refused(opened(server), SourceNotFound) == (
            f"adapter_config.json not found in hf://org/sql@main; the repository has one in {folder}"
        )


async def test_shards_of_a_repository_are_one_adapter() -> None:
    server = hub()
    server.commits[OLD] = sharded(FILES[OLD])
    async with server.running():
        assert await resolved(opened(server)) == (OLD, DATA[OLD])


async def test_a_broken_download_from_the_cdn_goes_on_where_it_broke() -> None:
    async with hub(drop_after=150_000, drops=3).running() as server:
        assert await resolved(opened(server)) == (OLD, DATA[OLD])
        assert server.drops == 0
        ranges = [r.headers["range"] for r in server.requests if r.path.startswith("/cdn")]
        assert len(ranges) == len(set(ranges))


@pytest.mark.parametrize(
    ("gated", "secret", "line"),
    [
        (False, None, "401 from {host} for org/sql at main: no token configured"),
        (
            False,
            {"token": b"wrong-canary"},
            "401 from {host} for org/sql at main: Secret team-a/hf-token key token was sent",
        ),
        (
            True,
            None,
            "401 from {host} for org/sql at main: no token configured; "
            "the repository is gated: ask at {url}/org/sql for access of the token's account",
        ),
        (
            True,
            {"token": b"wrong-canary"},
            "403 from {host} for org/sql at main: Secret team-a/hf-token key token was sent; "
            "the repository is gated: ask at {url}/org/sql for access of the token's account",
        ),
    ],
    ids=["private", "private, wrong token", "gated", "gated, without access"],
)
async def test_who_may_not_read_is_told_what_to_do(
    gated: bool, secret: dict[str, bytes] | None, line: str
) -> None:
    async with hub(token="hf_canary", gated=gated).running() as server:
        text = await refused(opened(server, secret), AccessDenied)
        assert text == line.format(host=server.url.removeprefix("http://"), url=server.url)


async def test_what_the_hub_has_not_is_named() -> None:
    async with hub().running() as server:
        host = server.url.removeprefix("http://")
        text = await refused(opened(server, revision="v2"), SourceNotFound)
        assert text == f"{host} has no org/sql at v2"
        text = await refused(opened(server, revision="c" * 40), SourceNotFound)
        assert text == f"{host} has no org/sql at {'c' * 40}"
        text = await refused(opened(server, repo="org/other"), AccessDenied)
        assert text == f"401 from {host} for org/other at main: no token configured"
        server.commits[OLD] = {"adapter_config.json": CONFIG}
        text = await refused(opened(server), SourceNotFound)
        assert text.startswith("no adapter_model.safetensors, ")


async def test_the_hubs_own_library_reads_the_same_and_its_cache_is_a_volume(
    tmp_path: Path,
) -> None:
    """What shows that this server speaks as the hub does."""
    cache = tmp_path / "team-a" / "cache"

    async def theirs(server: HubServer, cache: Path, **given: Any) -> str:
        return await asyncio.to_thread(
            snapshot_download, "org/sql", endpoint=server.url, cache_dir=cache, **given
        )

    async with hub(token="hf_canary").running() as server:
        folder = await theirs(server, cache, token="hf_canary")
        assert folder.endswith(f"models--org--sql/snapshots/{OLD}")
        with pytest.raises(RepositoryNotFoundError):
            await theirs(server, tmp_path, token=False)
        with pytest.raises(RevisionNotFoundError):
            await theirs(server, tmp_path, token="hf_canary", revision="v2")
        server.gated = True
        with pytest.raises(GatedRepoError):
            await theirs(server, tmp_path, token="wrong-canary")
    for path in ("models--org--sql", f"models--org--sql/snapshots/{OLD}"):
        source = open_source(
            {"persistentVolumeClaim": {"claimName": "cache", "path": path}},
            namespace="team-a",
            name="sql",
            settings=SourceSettings(volume_root=tmp_path),
            secret=None,
        )
        found = await source.resolve()
        assert found.uri == f"pvc://team-a/cache/models--org--sql/snapshots/{OLD}"
        assert found.normalized == ("links followed, plain files staged",)
        assert await read_all(found) == DATA[OLD]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"sha": "../../x"}', b"<html>"])
async def test_an_answer_without_a_commit_is_one_line(answer: bytes) -> None:
    async with LyingServer(files={"/api/models/org/sql/revision/main": answer}).running() as server:
        text = await refused(opened(server), SourceUnavailable)
    assert text == "hf://org/sql@main: the hub does not name the revision's commit"


async def test_a_busy_hub_is_one_line() -> None:
    async with LyingServer(status=429, extra_headers={"Retry-After": "300"}).running() as server:
        text = await refused(opened(server), SourceUnavailable)
        assert len(server.requests) == 1
    assert text == "hf://org/sql@main: HTTP status 429 (asks to wait 300 s)"


async def test_a_redirect_into_a_denied_network_is_refused() -> None:
    strict = replace(FAST, denied_networks=("10.0.0.0/8",))
    weights = f"/org/sql/resolve/{OLD}/adapter_config.json"
    async with LyingServer(redirects={weights: "http://10.96.0.1/secret"}).running() as server:
        spec = {"huggingFace": {"repo": "org/sql", "revision": OLD, "endpoint": server.url}}
        source = open_source(spec, namespace="a", name="b", settings=strict, secret=None)
        text = await refused(source, PathNotAllowed)
    assert text.endswith("leads to a denied (10.0.0.0/8) address, not allowed")


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
