"""OCI registries: Debian's docker-registry, open, with a password and with tokens."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.errors import (
    AccessDenied,
    DigestMismatch,
    InvalidAdapter,
    LorafleetError,
    PathNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.bounds import SourceSettings
from object_servers import PASSWORD, Registry, start_registry
from object_source_rig import DATA, FILES, OTHER, OTHER_DATA, opened, refused, resolved
from registry_tokens import ISSUER, SERVICE, TokenServer
from servers import LyingServer, free_port
from source_builders import FAST, read_all
from source_builders import artifact as built

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lorafleet_operator.sources.base import Source

REPOSITORY = "team-a/sql_v1/x"
LOGIN = {"username": b"ann", "password": PASSWORD.encode()}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with start_registry(tmp_path_factory.mktemp("registry")) as server:
        server.push_files(REPOSITORY, "v1", FILES)
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with start_registry(tmp_path_factory.mktemp("guarded"), password=True) as server:
        server.push_files(REPOSITORY, "v1", FILES)
        yield server


def artifact(
    host: str, version: str = ":v1", secret: dict[str, bytes] | None = None, **more: Any
) -> Source:
    reference = f"{host}/{more.pop('repository', REPOSITORY)}{version}"
    return opened("oci", {"reference": reference, "plainHttp": True}, secret, **more)


async def test_a_tag_is_resolved_to_the_digest_that_it_names_now(registry: Registry) -> None:
    old_digest = registry.push_files(REPOSITORY, "moving", FILES)
    source = artifact(registry.host, ":moving")
    old = await source.resolve()
    assert old.revision == old_digest
    assert old.uri == f"oci://{registry.host}/{REPOSITORY}:moving"
    new_digest = registry.push_files(REPOSITORY, "moving", OTHER)
    assert await read_all(old) == DATA, "a digest does not move"
    new = await source.resolve()
    assert (new.revision, await read_all(new)) == (new_digest, OTHER_DATA)
    assert new.fingerprint != old.fingerprint
    registry.push_files(REPOSITORY, "moving", FILES)
    assert (await source.resolve()).fingerprint == old.fingerprint
    await source.aclose()


async def test_a_digest_is_read_as_it_is(registry: Registry) -> None:
    digest = registry.push_files(REPOSITORY, "v2", OTHER)
    found, data = await resolved(artifact(registry.host, f"@{digest}"))
    assert (found.revision, data) == (digest, OTHER_DATA)


@pytest.mark.parametrize("folder", ["./", "out/", "deep/er/"])
async def test_a_folder_in_the_layers_names_does_not_matter(
    registry: Registry, folder: str
) -> None:
    registry.push_files(REPOSITORY, "folder", FILES, folder)
    _, data = await resolved(artifact(registry.host, ":folder"))
    assert data == DATA


async def test_a_tar_layer_is_refused_by_what_it_is(registry: Registry) -> None:
    layer = registry.put_blob(REPOSITORY, b"\x1f\x8b tar")
    layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip"
    layer["annotations"] = {"org.opencontainers.image.title": "sql"}
    registry.push(REPOSITORY, "tar", [layer])
    assert await refused(artifact(registry.host, ":tar"), InvalidAdapter) == (
        f"oci://{registry.host}/{REPOSITORY}:tar holds a tar layer "
        "(application/vnd.oci.image.layer.v1.tar+gzip), not the adapter's files; push "
        "adapter_config.json and adapter_model.safetensors as layers of their own (oras push does)"
    )


async def test_an_index_is_refused_by_what_it_is(registry: Registry) -> None:
    kind = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": []}
    registry.put_manifest(REPOSITORY, "index", kind, index)
    text = await refused(artifact(registry.host, ":index"), InvalidAdapter)
    assert text.endswith("is an index of 0 manifests; name one of them by its digest")


async def test_missing_things_are_named(registry: Registry) -> None:
    assert (
        await refused(artifact(registry.host, ":nothing"), SourceNotFound)
        == f"{registry.host} has no {REPOSITORY} at nothing (404 MANIFEST_UNKNOWN)"
    )
    text = await refused(artifact(registry.host, repository="no/such"), SourceNotFound)
    assert text == f"{registry.host} has no no/such at v1 (404 MANIFEST_UNKNOWN)"
    registry.push_files(REPOSITORY, "half", {"adapter_config.json": b"{}"})
    text = await refused(artifact(registry.host, ":half"), SourceNotFound)
    assert text.startswith("no adapter_model.safetensors")


def docker_config(host: str, pair: str = f"ann:{PASSWORD}") -> dict[str, bytes]:
    auth = base64.b64encode(pair.encode()).decode()
    return {".dockerconfigjson": json.dumps({"auths": {host: {"auth": auth}}}, indent=1).encode()}


async def test_a_password_lets_in_as_two_keys_or_as_a_docker_config(guarded: Registry) -> None:
    for secret in (LOGIN, docker_config(guarded.host), docker_config(f"http://{guarded.host}/v2")):
        _, data = await resolved(artifact(guarded.host, secret=secret))
        assert data == DATA


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (None, "no credentials configured"),
        (
            {**LOGIN, "password": b"canary-wrong"},
            "the credentials of Secret team-a/keys were sent",
        ),
        ({"token": b"canary-token"}, "the credentials of Secret team-a/keys were sent"),
    ],
)
async def test_wrong_credentials_are_one_line_without_them(
    guarded: Registry, secret: dict[str, bytes] | None, message: str
) -> None:
    text = await refused(artifact(guarded.host, secret=secret), AccessDenied)
    where = f"oci://{guarded.host}/{REPOSITORY}:v1"
    assert text == f"401 UNAUTHORIZED from {where}: {message}"


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


async def test_a_registry_with_tokens_is_read_with_one_that_its_realm_gives(
    tmp_path: Path,
) -> None:
    tokens = TokenServer()
    port = free_port()
    tokens.write_certificate(tmp_path / "tokens.pem")
    token = {
        "realm": f"http://127.0.0.1:{port}/token",
        "service": SERVICE,
        "issuer": ISSUER,
        "rootcertbundle": str(tmp_path / "tokens.pem"),
    }
    with start_registry(tmp_path, token=token) as registry:
        pushing = tokens.token(REPOSITORY, ["pull", "push"])
        registry.headers = {"Authorization": f"Bearer {pushing}"}
        registry.push_files(REPOSITORY, "v1", FILES)
        async with tokens.running(port):
            _, data = await resolved(artifact(registry.host))
            assert data == DATA, "anybody gets a token"
            assert len(tokens.web.requests) == 1, "one token for all requests"
            assert "authorization" not in tokens.web.requests[0].headers
            tokens.life_s = 0  # as if the answer did not say: 60 s
            tokens.password = f"ann:{PASSWORD}"
            _, data = await resolved(artifact(registry.host, secret=LOGIN))
            assert data == DATA
            wrong = {**LOGIN, "password": b"canary-wrong"}
            text = await refused(artifact(registry.host, secret=wrong), AccessDenied)
            assert text == (
                f"401 from 127.0.0.1:{port} for a token for oci://{registry.host}/{REPOSITORY}:v1: "
                "the credentials of Secret team-a/keys were sent"
            )
            _, data = await resolved(artifact(registry.host, secret={"token": pushing.encode()}))
            assert data == DATA, "a token of the Secret's own is sent as it is"


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


def lying(files: dict[str, bytes]) -> LyingServer:
    """A registry by hand, whose blobs may be other than their digests say."""
    return LyingServer(etag=None, files=built(files, REPOSITORY, "v1"))


def blob_path(content: bytes) -> str:
    return f"/v2/{REPOSITORY}/blobs/sha256:{hashlib.sha256(content).hexdigest()}"


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


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"<html>", "the manifest is not a JSON object"),
        (b"[" * 100_000, "the manifest is not a JSON object"),
        (b'{"layers": 1}', "has no list of at most 1024 layers"),
        (json.dumps({"layers": [{}] * 1025}).encode(), "has no list of at most 1024 layers"),
        (b'{"layers": [1]}', "a layer of the manifest is not an object"),
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


async def test_a_registry_on_the_node_itself_is_out_of_bounds(registry: Registry) -> None:
    strict = SourceSettings(backoff_s=0.001)
    text = await refused(artifact(registry.host, settings=strict), PathNotAllowed)
    assert text.endswith("leads to a loopback address, not allowed")
