"""Registries that lie: manifests, indexes, digests, realms, and what a reference may be."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from artifact_rig import (
    LOGIN,
    REPOSITORY,
    artifact,
    blob_path,
    docker_config,
    entry,
    index_of,
    lying,
)
from lorafleet.errors import (
    AccessDenied,
    DigestMismatch,
    InvalidAdapter,
    LorafleetError,
    PathNotAllowed,
    SourceUnavailable,
    TooLarge,
)
from object_source_rig import DATA, FILES, opened, refused, resolved
from servers import LyingServer, Request
from source_builders import FAST


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "is an index of 0 manifests; name one of them by its digest"),
        (
            [entry(f"sha256:{'0' * 64}"), entry(f"sha256:{'1' * 64}")],
            "is an index of 2 manifests; name one of them by its digest",
        ),
        ([entry("sha256:../../x")], "the index names no sha256 digest"),
        ([1], "the index names no sha256 digest"),
    ],
)
async def test_an_index_of_others_is_one_line(entries: list[Any], message: str) -> None:
    server = lying(FILES)
    server.files[f"/v2/{REPOSITORY}/manifests/v1"] = json.dumps(index_of(*entries)).encode()
    async with server.running():
        text = await refused(artifact(server.url.removeprefix("http://")), InvalidAdapter)
    assert text.endswith(message)


async def test_what_an_index_names_is_compared_with_its_digest_and_no_index_itself() -> None:
    server = lying(FILES)
    inner = json.dumps(index_of()).encode()
    for promised, error, message in (
        (hashlib.sha256(inner).hexdigest(), InvalidAdapter, "is an index in an index"),
        ("0" * 64, DigestMismatch, f"asked for was sha256:{'0' * 64}"),
    ):
        outer = index_of(entry(f"sha256:{promised}"))
        server.files[f"/v2/{REPOSITORY}/manifests/v1"] = json.dumps(outer).encode()
        server.files[f"/v2/{REPOSITORY}/manifests/sha256:{promised}"] = inner
        async with server.running():
            text = await refused(artifact(server.url.removeprefix("http://")), error)
        assert message in text


@pytest.mark.parametrize(
    ("lie", "size"),
    [({"claims": 5 << 20}, "more"), ({"length": False, "endless": True}, "more than 4194304")],
    ids=["promised", "endless"],
)
async def test_a_manifest_above_the_limit_is_refused_before_it_is_held(
    lie: dict[str, Any], size: str
) -> None:
    def only_here(server: LyingServer, request: Request) -> None:
        if "/manifests/" in request.path:
            vars(server).update(lie)

    server = lying(FILES)
    server.ranges, server.on_request = False, only_here
    manifest = server.files[f"/v2/{REPOSITORY}/manifests/v1"]
    async with server.running():
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host), TooLarge)
    has = size if "than" in size else len(manifest) + (5 << 20)
    assert text == (
        f"manifest in oci://{host}/{REPOSITORY}:v1 has {has} bytes, at most 4194304 are allowed"
    )


async def test_what_a_reader_left_out_is_read_for_the_check() -> None:
    server = lying(FILES)
    content = FILES["adapter_model.safetensors"]
    server.files[blob_path(content)] = content[:-1] + bytes([content[-1] ^ 1])
    async with server.running():
        source = artifact(server.url.removeprefix("http://"))
        found = await source.resolve()
        assert found.whole
        await found.read(100_000, 1000)
        with pytest.raises(DigestMismatch, match="has the content sha256:"):
            await found.confirm()
        await source.aclose()


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ({"accountKey": b"canary"}, "lacks key token (or username and password)"),
        ({".dockerconfigjson": b"canary"}, "its Docker config has no table auths"),
        (docker_config("other.example"), "its Docker config has no password for 127.0.0.1:1"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line(secret: dict[str, bytes], message: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        artifact("127.0.0.1:1", secret=secret)
    assert message in str(caught.value)
    assert "canary" not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize(
    ("realm", "error", "message"),
    [
        (
            "http://169.254.169.254/token",
            PathNotAllowed,
            "leads to a denied (169.254.0.0/16) address",
        ),
        ("ftp://tokens.example/", PathNotAllowed, "names no address for tokens"),
        ("http://user:canary@127.0.0.1/", PathNotAllowed, "user and password in a URL"),
        ("", PathNotAllowed, "names no address for tokens"),
    ],
)
async def test_a_realm_out_of_bounds_is_sent_nothing(
    realm: str, error: type[LorafleetError], message: str
) -> None:
    settings = replace(FAST, denied_networks=("169.254.0.0/16",))
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    async with LyingServer(status=401, extra_headers=challenge).running() as server:
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host, secret=LOGIN, settings=settings), error)
        assert message in text
        assert not [r for r in server.requests if "authorization" in r.headers]


@pytest.mark.parametrize("name", sorted(FILES))
async def test_other_content_than_the_digest_promises_is_never_taken(name: str) -> None:
    server = lying(FILES)
    content = FILES[name]
    server.files[blob_path(content)] = content[:-1] + bytes([content[-1] ^ 1])
    async with server.running():
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host), DigestMismatch)
    promised = hashlib.sha256(content).hexdigest()
    assert text.startswith(f"{name} in oci://{host}/{REPOSITORY}:v1 has the content sha256:")
    assert text.endswith(f"the manifest promises sha256:{promised}")


async def test_another_size_than_the_manifest_promises_is_refused() -> None:
    server = lying(FILES)
    weights = FILES["adapter_model.safetensors"]
    server.files[blob_path(weights)] = weights + b"x"
    async with server.running():
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host), DigestMismatch)
    assert f"has {len(weights) + 1} bytes, the manifest promises {len(weights)}" in text


async def test_another_manifest_than_the_digest_asked_for_is_refused() -> None:
    server = lying(FILES)
    manifest = server.files[f"/v2/{REPOSITORY}/manifests/v1"]
    wanted = f"sha256:{'0' * 64}"
    server.files[f"/v2/{REPOSITORY}/manifests/{wanted}"] = manifest
    async with server.running():
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host, f"@{wanted}"), DigestMismatch)
    assert text.endswith(f"asked for was {wanted}")


async def test_blobs_may_lie_elsewhere_and_credentials_do_not_follow_there() -> None:
    store, server = LyingServer(), lying(FILES)
    async with store.running(), server.running():
        for path in [path for path in server.files if "/blobs/" in path]:
            store.files[path] = server.files.pop(path)
            server.redirects[path] = f"{store.url}{path}?X-Amz-Signature=abc"
        host = server.url.removeprefix("http://")
        _, data = await resolved(artifact(host, secret={"token": b"canary-token"}))
        assert data == DATA
        assert {r.headers.get("authorization") for r in store.requests} == {None}
        assert {r.headers.get("authorization") for r in server.requests if r.path != "/v2/"} == {
            "Bearer canary-token"
        }


def named(title: str) -> dict[str, Any]:
    """A layer with a file's name."""
    title_of = {"org.opencontainers.image.title": title}
    return {"digest": f"sha256:{'0' * 64}", "size": 1, "annotations": title_of}


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"<html>", "the manifest is not a JSON object"),
        (b"[" * 100_000, "the manifest is not a JSON object"),
        (b'{"layers": 1}', "has no list of at most 1024 layers"),
        (json.dumps({"layers": [{}] * 1025}).encode(), "has no list of at most 1024 layers"),
        (b'{"layers": [1]}', "a layer of the manifest is not an object"),
        (json.dumps({"layers": [named("x"), named("./x")]}).encode(), "two layers are called x"),
        (
            json.dumps(
                {"layers": [named("b/adapter_config.json"), named("a/adapter_config.json")]}
            ).encode(),
            "holds several adapters (a/, b/); push each on its own",
        ),
        (b'{"layers": [{"digest": "sha256:../../x"}]}', "a layer's digest is not sha256:"),
        (b'{"layers": [{"digest": "md5:%b"}]}' % (b"0" * 32), "a layer's digest is not sha256:"),
        (b'{"layers": [{"digest": "sha256:%b"}]}' % (b"0" * 64), "has no size"),
        (
            b'{"layers": [{"digest": "sha256:%b", "size": -1}]}' % (b"0" * 64),
            "has no size",
        ),
    ],
)
async def test_a_manifest_that_is_none_is_one_line(manifest: bytes, message: str) -> None:
    server = lying(FILES)
    server.files[f"/v2/{REPOSITORY}/manifests/v1"] = manifest
    async with server.running():
        text = await refused(artifact(server.url.removeprefix("http://")), InvalidAdapter)
    assert message in text


async def test_a_registry_that_is_busy_is_tried_again_and_named() -> None:
    async with LyingServer(status=429).running() as server:
        host = server.url.removeprefix("http://")
        text = await refused(artifact(host), SourceUnavailable)
        assert text == f"oci://{host}/{REPOSITORY}:v1: HTTP status 429"
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "sql:v1",
        "registry.example/sql",
        "registry.example/../sql:v1",
        "registry.example/Sql:v1",
        "user:canary@registry.example/sql:v1",
        "registry.example/sql@sha256:abc",
        "registry.example/sql:v1?x",
        "https://registry.example/sql:v1",
        "registry.example/" + "a" * 600 + ":v1",
    ],
)
def test_references_that_are_none_are_refused_at_once(reference: str) -> None:
    with pytest.raises(PathNotAllowed, match=r"source\.oci\.reference is not") as caught:
        opened("oci", {"reference": reference})
    assert "canary" not in str(caught.value)
