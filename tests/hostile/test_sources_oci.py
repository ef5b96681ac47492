"""OCI registries: Debian's docker-registry, open, with a password and with tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from artifact_rig import (
    INDEX,
    LOGIN,
    REPOSITORY,
    artifact,
    docker_config,
    entry,
    index_of,
)
from lorafleet.errors import (
    AccessDenied,
    InvalidAdapter,
    PathNotAllowed,
    SourceNotFound,
)
from lorafleet_operator.sources.bounds import SourceSettings
from object_servers import PASSWORD, Registry, start_registry
from object_source_rig import DATA, FILES, OTHER, OTHER_DATA, refused, resolved
from processes import free_port
from registry_tokens import ISSUER, SERVICE, TokenServer
from servers import CuttingProxy
from source_builders import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    for version in (f"@{digest}", f":v1@{digest}", f":no-such-tag@{digest}"):
        found, data = await resolved(artifact(registry.host, version))
        assert (found.revision, data) == (digest, OTHER_DATA)


@pytest.mark.parametrize("folder", ["./", "out/", "deep/er/"])
async def test_a_folder_in_the_layers_names_does_not_matter(
    registry: Registry, folder: str
) -> None:
    layers = registry.layers(REPOSITORY, FILES, folder)
    other = OTHER["adapter_model.safetensors"]
    if folder != "./":  # what lies elsewhere is not the adapter's, whatever it is called
        layers += registry.layers(REPOSITORY, {"adapter_model.safetensors": other})
    registry.push(REPOSITORY, "folder", layers)
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


async def test_an_index_of_one_manifest_is_that_one(registry: Registry) -> None:
    """As builders push: beside the one thing there may be papers on its origin."""
    digest = registry.push_files(REPOSITORY, "inner", FILES)
    papers = registry.push_files(REPOSITORY, "papers", {"x": b"y"})
    kind = {"vnd.docker.reference.type": "attestation-manifest"}
    index = index_of(entry(digest), entry(papers, annotations=kind))
    named = registry.put_manifest(REPOSITORY, "index", INDEX, index)
    found, data = await resolved(artifact(registry.host, ":index"))
    assert (found.revision, data) == (named, DATA)
    _, data = await resolved(artifact(registry.host, f"@{named}"))
    assert data == DATA


async def test_a_broken_download_goes_on_where_it_broke(registry: Registry) -> None:
    """Counted in bytes that the registry sends."""
    async with CuttingProxy(int(registry.host.rpartition(":")[2])).running() as proxy:
        proxy.cut_after, proxy.cuts = 250_000, 3
        _, data = await resolved(artifact(f"127.0.0.1:{proxy.port}"))
        assert data == DATA
        assert proxy.cuts == 0
        assert proxy.served < len(DATA) + 6 * 80_000


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


async def test_a_registry_on_the_node_itself_is_out_of_bounds(registry: Registry) -> None:
    strict = SourceSettings(backoff_s=0.001)
    text = await refused(artifact(registry.host, settings=strict), PathNotAllowed)
    assert text.endswith("leads to a loopback address, not allowed")
