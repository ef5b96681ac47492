"""Sources that break, lie or change while they are staged on a real sidecar."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import (
    DigestMismatch,
    LorafleetError,
    SourceChanged,
    SourceUnavailable,
    StagingBusy,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.sources.registry import open_source
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.streaming import Limits, Payload, stage
from servers import LyingServer, Request
from source_builders import FAST, artifact
from staging_builders import source_adapter
from staging_fixtures import sidecar
from staging_server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet_operator.sources.base import ResolvedAdapter, Source
    from staging_server import Serving

__all__ = ["sidecar"]  # a fixture

CHUNK = 64 << 10
LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)
ADAPTER = source_adapter(rank=32)  # 1 MiB
LENGTH = len(ADAPTER.header)
WEIGHTS = LENGTH.to_bytes(8, "little") + ADAPTER.header + ADAPTER.data
FILES = {"adapter_config.json": ADAPTER.config, "adapter_model.safetensors": WEIGHTS}
BLOB = f"/v2/team/sql/blobs/sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"


@pytest.fixture
async def client(sidecar: Serving) -> AsyncIterator[SidecarClient]:
    found = SidecarClient("127.0.0.1", sidecar.port)
    yield found
    await found.close()


def artifact_at(server: LyingServer) -> Source:
    reference = f"127.0.0.1:{server.port}/team/sql:v1"
    return opened({"oci": {"reference": reference, "plainHttp": True}})


def opened(source: dict[str, dict[str, object]]) -> Source:
    once = replace(FAST, attempts=1)  # a break ends the pass, as a long one does
    return open_source(source, namespace="team-a", name="sql", settings=once, secret=None)


def payload(content: ResolvedAdapter) -> Payload:
    fields = {"fingerprint": content.fingerprint, "whole": content.whole}
    manifest = ADAPTER.manifest(CHUNK, **fields)
    return Payload(manifest, ADAPTER.cuts(CHUNK), content.read, content.confirm)


async def staged(source: Source, client: SidecarClient) -> pb.StagedRevision:
    """Stage once, as one pass of the operator does."""
    try:
        content = await source.resolve()
        while True:
            result = (await stage(payload(content), {"a": client}, LIMITS))["a"]
            if not isinstance(result, StagingBusy):  # the sidecar still closes the last stream
                break
    finally:
        await source.aclose()
    if isinstance(result, LorafleetError):
        raise result
    return result


async def right_digest(client: SidecarClient) -> str:
    async def read(offset: int, length: int) -> bytes:
        return ADAPTER.data[offset : offset + length]

    mine = Payload(ADAPTER.manifest(CHUNK), ADAPTER.cuts(CHUNK), read)
    result = (await stage(mine, {"a": client}, LIMITS))["a"]
    assert isinstance(result, pb.StagedRevision)
    return result.digest


def data_requests(server: LyingServer, path: str) -> list[int]:
    """The first bytes that were asked for after the head of the weights."""
    asked = [r.headers["range"] for r in server.requests if r.path == path]
    starts = [int(text.split("=")[1].split("-")[0]) for text in asked]
    return [start for start in starts if start]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


async def test_a_broken_download_is_resumed_by_the_next_transfer(client: SidecarClient) -> None:
    """Each byte of the data is asked for once, over both transfers."""
    server = LyingServer(files={f"/sql/{name}": content for name, content in FILES.items()})
    async with server.running():
        spec = {"http": {"url": f"{server.url}/sql"}}
        broken = set(range(600_000, len(WEIGHTS)))

        def breaks(server: LyingServer, request: Request) -> None:
            start = request.headers.get("range", "=0").split("=")[1].split("-")[0]
            server.status = 503 if int(start) in broken else None

        server.on_request = breaks
        with pytest.raises(SourceUnavailable, match="HTTP status 503"):
            await staged(opened(spec), client)
        server.on_request = server.status = None
        before = [r for r in data_requests(server, "/sql/adapter_model.safetensors") if r < 600_000]
        server.requests.clear()
        result = await staged(opened(spec), client)
        after = data_requests(server, "/sql/adapter_model.safetensors")
        assert min(after) >= 400_000
        assert not set(before) & set(after)
        assert result.digest == await right_digest(client)


async def test_what_was_staged_of_a_broken_artifact_is_never_taken_over(
    client: SidecarClient,
) -> None:
    """A registry that gave wrong bytes, broke off and then gives the right ones."""
    server = LyingServer(etag=None, files=artifact(FILES, "team/sql", "v1"))
    async with server.running():
        server.files[BLOB] = flipped(WEIGHTS, 8 + LENGTH + 70_000)

        def breaks(server: LyingServer, request: Request) -> None:
            start = request.headers.get("range", "=0").split("=")[1].split("-")[0]
            server.status = 503 if int(start) > 600_000 else None

        server.on_request = breaks
        with pytest.raises(SourceUnavailable):
            await staged(artifact_at(server), client)
        server.on_request = server.status = None
        server.files[BLOB] = WEIGHTS
        result = await staged(artifact_at(server), client)
        assert result.digest == await right_digest(client)


@pytest.mark.parametrize("at", [70_000, 500_000, len(ADAPTER.data) - 1])
async def test_an_artifact_of_other_content_is_refused_each_time(
    client: SidecarClient,
    sidecar: Serving,
    at: int,
) -> None:
    server = LyingServer(etag=None, files=artifact(FILES, "team/sql", "v1"))
    server.files[BLOB] = flipped(WEIGHTS, 8 + LENGTH + at)
    async with server.running():
        for _ in range(2):
            with pytest.raises(DigestMismatch, match="has the content sha256:"):
                await staged(artifact_at(server), client)
        assert sidecar.store.revisions() == []


async def test_what_is_staged_is_readable_by_another_user(volume: Path) -> None:
    """The sidecar's umask is nobody's business: the engine's container has a user of its own."""
    before = os.umask(0o077)
    try:
        async with serving(volume) as running:
            client = SidecarClient("127.0.0.1", running.port)
            digest = await right_digest(client)
            await client.close()
            plain = await running.store.export_plain(digest)
            revision = running.store.revision_dir(digest)
            read_by_engines = [volume / "arena", *revision.iterdir(), *plain.iterdir()]
            assert {path.name for path in read_by_engines} >= {
                "arena",
                "revision.json",
                "adapter_config.json",
                "adapter_model.safetensors",
            }
            modes = {path.name: path.stat().st_mode & 0o777 for path in read_by_engines}
            # Where a driver cannot pin memory that is mapped for reading alone, the group writes.
            assert modes.pop("arena") == 0o664
            assert set(modes.values()) == {0o644}
            folders = (revision, revision.parent, plain, plain.parent)
            assert {path.stat().st_mode & 0o777 for path in folders} == {0o755}
    finally:
        os.umask(before)


async def test_a_config_that_changes_meanwhile_is_never_committed_with_the_old_weights(
    client: SidecarClient,
    sidecar: Serving,
) -> None:
    server = LyingServer(
        etag="content", files={f"/sql/{name}": content for name, content in FILES.items()}
    )
    async with server.running():

        def changes(server: LyingServer, request: Request) -> None:
            if "if-match" in request.headers:  # the data is on its way
                server.files["/sql/adapter_config.json"] = ADAPTER.config + b" "

        server.on_request = changes
        spec = {"http": {"url": f"{server.url}/sql"}}
        with pytest.raises(SourceChanged, match=r"adapter_config.json in http://.*: changed since"):
            await staged(opened(spec), client)
        assert sidecar.store.revisions() == []
        await staged(opened(spec), client)
