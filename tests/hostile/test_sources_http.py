"""A web server that drops, cuts, ignores ranges and changes what it serves: read right all the same."""

import asyncio
from typing import Any

import pytest
from http_source_rig import (
    DATA,
    WEIGHTS,
    everything,
    opened,
    refused,
    server,
)
from lorafleet.errors import (
    InvalidAdapter,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
)
from servers import LyingServer, Request
from source_builders import adapter, data_of, read_all

__all__ = ["server"]  # a fixture


async def test_an_honest_server_is_read_by_ranges(server: LyingServer) -> None:
    source = opened(server)
    found = await source.resolve()
    assert len(server.requests) == 2, "one request for each file is enough to resolve"
    assert found.revision == "v1"
    assert await read_all(found) == DATA
    assert all("range" in request.headers for request in server.requests)
    await source.aclose()


@pytest.mark.parametrize(
    "lie",
    [
        {"ranges": False},
        {"ranges": False, "length": False},
        {"short": 100_000},
        {"drop_after": 70_000, "drops": 6},
        {"drop_after": 70_000, "drops": 3, "ranges": False},
        {"drop_after": 0, "drops": 3},
        {"etag": None, "last_modified": "Sun, 29 Nov 2026 10:00:00 GMT"},
        {"etag": None},
        {"etag": 'W/"weak"'},
        {"etag": None, "ranges": False, "length": False},
        {"honours_conditions": False},
        {"ranges": False, "extra_headers": {"Accept-Ranges": "bytes"}},
    ],
    ids=str,
)
async def test_awkward_servers_are_still_read_right(
    server: LyingServer, lie: dict[str, Any]
) -> None:
    vars(server).update(lie)
    assert await everything(opened(server)) == DATA


async def test_a_server_that_stops_honouring_ranges_is_read_in_one_pass(
    server: LyingServer,
) -> None:
    source = opened(server)
    found = await source.resolve()
    server.ranges = False
    server.requests.clear()
    assert await read_all(found, 100_000) == DATA
    assert len(server.requests) <= 2, "after the first such answer none is asked for a range"
    await source.aclose()


async def test_a_broken_read_goes_on_where_it_broke(server: LyingServer) -> None:
    source = opened(server)
    found = await source.resolve()
    server.requests.clear()
    server.drop_after, server.drops = 200_000, 2
    assert bytes(await found.read(0, 800_000)) == DATA[:800_000]
    starts = [int(r.headers["range"].split("=")[1].split("-")[0]) for r in server.requests]
    assert len(starts) == 3
    assert starts == sorted(set(starts)), "no byte was asked for twice"
    assert starts[-1] - starts[0] == 400_000
    await source.aclose()


@pytest.mark.parametrize("etag", ['"v1"', None])
async def test_a_server_without_ranges_is_read_in_one_pass(
    server: LyingServer, etag: str | None
) -> None:
    server.ranges, server.etag = False, etag
    content = adapter(elements=1 << 20)["adapter_model.safetensors"]
    server.files[WEIGHTS] = content
    source = opened(server)
    found = await source.resolve()
    server.requests.clear()
    assert await read_all(found, step=100_000) == data_of(content)
    assert len(server.requests) <= 1
    assert bytes(await found.read(200_000, 10)) == data_of(content)[200_000:200_010]
    await source.aclose()


@pytest.mark.parametrize("etag", ['"v1"', None])
@pytest.mark.parametrize("ranges", [True, False])
async def test_reads_ahead_of_one_another_are_each_right(
    server: LyingServer, ranges: bool, etag: str | None
) -> None:
    server.ranges, server.etag = ranges, etag
    source = opened(server)
    found = await source.resolve()
    server.requests.clear()
    starts = range(0, found.data_bytes, 100_000)
    reads = [found.read(at, min(100_000, found.data_bytes - at)) for at in starts]
    assert b"".join(await asyncio.gather(*reads)) == DATA
    assert ranges or len(server.requests) <= 1, "one pass, although several reads wait at once"
    await source.aclose()


@pytest.mark.parametrize("honours_conditions", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
async def test_another_etag_midway_is_noticed(
    server: LyingServer, ranges: bool, honours_conditions: bool
) -> None:
    server.ranges, server.honours_conditions = ranges, honours_conditions
    source = opened(server)
    found = await source.resolve()
    await found.read(0, 500_000)
    server.etag = '"v2"'
    # The stream that is open may give the old version to its end; a new request must not.
    with pytest.raises(SourceChanged, match="changed since it was resolved"):
        await found.read(0, 500_000)
    again = await source.resolve()
    assert again.fingerprint != found.fingerprint
    assert again.revision == "v2"
    assert await read_all(again) == DATA
    await source.aclose()


@pytest.mark.parametrize(
    "lie", [{}, {"etag": None, "last_modified": "Sun, 29 Nov 2026 10:00:00 GMT"}]
)
async def test_two_adapters_of_one_shape_and_one_second_are_told_apart(
    server: LyingServer, lie: dict[str, Any]
) -> None:
    """Many servers make the ETag of size and time: it is then the same for both."""
    vars(server).update(lie)
    for name, content in adapter(elements=1 << 18, seed=2).items():
        server.files[f"/chat/{name}"] = content
    found = []
    for path in ("/sql", "/chat", "/sql?adapter=a", "/sql?adapter=b"):
        source = opened(server, path)
        found.append(await source.resolve())
        await source.aclose()
    assert len({each.header_bytes for each in found}) == 1
    assert len({each.fingerprint for each in found}) == 4


async def test_other_content_under_no_validator_is_noticed(server: LyingServer) -> None:
    server.etag = None
    source = opened(server)
    found = await source.resolve()
    content = bytearray(server.files[WEIGHTS])
    content[-10] ^= 1
    server.files[WEIGHTS] = bytes(content)
    assert bytes(await found.read(0, 100)) == DATA[:100]
    with pytest.raises(SourceChanged):
        await found.read(len(DATA) - 20, 5)
    again = await source.resolve()
    assert again.fingerprint != found.fingerprint
    assert again.revision.startswith("sha256:")
    await source.aclose()


async def test_a_long_etag_is_cut_in_the_status_and_kept_in_the_comparison(
    server: LyingServer,
) -> None:
    server.etag = '"' + "e" * 3000 + '1"'
    source = opened(server)
    found = await source.resolve()
    assert len(found.revision) == 64
    server.etag = '"' + "e" * 3000 + '2"'
    with pytest.raises(SourceChanged) as caught:
        await found.read(200_000, 10)
    assert len(str(caught.value)) < 400
    await source.aclose()


async def test_another_size_under_the_same_etag_is_noticed(server: LyingServer) -> None:
    source = opened(server)
    found = await source.resolve()
    server.files[WEIGHTS] += b"more"
    with pytest.raises(SourceChanged, match=f"has {len(DATA)}|has .* bytes, resolved"):
        await found.read(200_000, 10)
    del server.files[WEIGHTS]
    with pytest.raises(SourceNotFound, match="gone since it was resolved"):
        await found.read(200_000, 10)
    await source.aclose()


async def test_a_range_that_begins_elsewhere_is_never_taken(server: LyingServer) -> None:
    source = opened(server)
    found = await source.resolve()
    server.shift = 8
    with pytest.raises(SourceUnavailable, match="carries other bytes than asked for"):
        await found.read(200_000, 1000)
    await source.aclose()


async def test_a_cut_upload_is_an_incomplete_adapter(server: LyingServer) -> None:
    server.files[WEIGHTS] = server.files[WEIGHTS][:-100]
    have = len(server.files[WEIGHTS])
    assert (
        await refused(opened(server), InvalidAdapter)
        == f"adapter_model.safetensors is incomplete (have {have} bytes, header wants {have + 100})"
    )


async def test_a_file_of_another_name_has_its_config_beside_it(server: LyingServer) -> None:
    server.files["/sql/my lora.safetensors"] = server.files.pop(WEIGHTS)

    def decode(server: LyingServer, request: Request) -> None:
        request.path = request.path.replace("%20", " ")

    server.on_request = decode
    assert await everything(opened(server, path="/sql/my lora.safetensors")) == DATA


async def test_pickles_from_the_web_need_permission(server: LyingServer) -> None:
    del server.files[WEIGHTS]
    server.files["/sql/adapter_model.bin"] = b"PK\x03\x04" + bytes(100)
    assert "is a pickle, which this source does not allow" in await refused(
        opened(server), InvalidAdapter
    )
    assert "is incomplete" in await refused(opened(server, allowPickle=True), InvalidAdapter)
