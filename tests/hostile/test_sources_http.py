"""A web server that drops, cuts, redirects, ignores ranges and changes what it serves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from lorafleet.errors import (
    AccessDenied,
    InvalidAdapter,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.base import Source
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer, Request, serving
from source_builders import FAST, adapter, data_of, read_all

WEIGHTS = "/sql/adapter_model.safetensors"
CONFIG = "/sql/adapter_config.json"
FILES = adapter(elements=1 << 18)
DATA = data_of(FILES["adapter_model.safetensors"])


@pytest.fixture
async def server() -> AsyncIterator[LyingServer]:
    lying = LyingServer(files={f"/sql/{name}": content for name, content in FILES.items()})
    async with lying.running():
        yield lying


def opened(
    server: LyingServer,
    path: str = "/sql",
    settings: SourceSettings = FAST,
    secret: dict[str, bytes] | None = None,
    **spec: Any,
) -> Source:
    reference = {"credentialsSecretRef": {"name": "keys"}} if secret is not None else {}
    return open_source(
        {"http": {"url": server.url + path}, **reference, **spec},
        namespace="team-a",
        name="sql",
        settings=settings,
        secret=secret,
    )


async def everything(source: Source, step: int = 1 << 18) -> bytes:
    try:
        return await read_all(await source.resolve(), step)
    finally:
        await source.aclose()


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await everything(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    ],
    ids=str,
)
async def test_awkward_servers_are_still_read_right(
    server: LyingServer, lie: dict[str, Any]
) -> None:
    vars(server).update(lie)
    assert await everything(opened(server)) == DATA


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


async def test_a_server_that_always_drops_ends_in_one_line(server: LyingServer) -> None:
    server.drop_after, server.drops = 10, 1_000_000
    text = await refused(opened(server), SourceUnavailable)
    assert text == f"{server.url}/sql: the answer broke off"
    assert len(server.requests) == FAST.attempts


async def test_a_server_that_says_nothing_is_given_up(server: LyingServer) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    quick = replace(FAST, stall_timeout_s=0.05, attempts=2)
    async with serving(silence) as server.port:
        text = await refused(opened(server, settings=quick), SourceUnavailable)
    assert text.endswith("no answer in time")


async def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server: LyingServer) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    quick = replace(FAST, read_timeout_s=0.2)
    async with serving(drip) as server.port:
        text = await refused(opened(server, settings=quick), SourceUnavailable)
    assert text.endswith("no answer after 0.2 s")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"status": 500}, SourceUnavailable, ": HTTP status 500"),
        ({"status": 204}, SourceUnavailable, ": HTTP status 204"),
        ({"status": 206}, SourceUnavailable, "does not say which bytes it carries"),
        ({"status": 401}, AccessDenied, "401 from {url}/sql: no credentials configured"),
        ({"status": 404}, SourceNotFound, "adapter_config.json not found in {url}/sql"),
        ({"extra_headers": {"Content-Encoding": "gzip"}}, SourceUnavailable, "compresses"),
        ({"extra_headers": {"X-Large": "x" * 100_000}}, SourceUnavailable, "broken answer"),
        ({"extra_headers": {"Content-Length": "nonsense"}}, SourceUnavailable, "broken answer"),
    ],
)
async def test_other_answers_are_one_line_each(
    server: LyingServer, answer: dict[str, Any], error: type[LorafleetError], message: str
) -> None:
    vars(server).update(answer)
    assert message.format(url=server.url) in await refused(opened(server), error)


async def test_a_body_without_end_stops_at_the_limit(server: LyingServer) -> None:
    server.length = server.ranges = False
    server.files[CONFIG] = bytes(3 << 20)
    text = await refused(opened(server), LorafleetError)
    assert "adapter_config.json has 3145728 bytes, at most 1048576 are allowed" in text


async def test_nobody_at_the_address_is_one_line(server: LyingServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.port = unused.getsockname()[1]
        text = await refused(opened(server), SourceUnavailable)
    assert text.startswith(f"{server.url}/sql: cannot connect (")


async def test_redirects_are_followed_and_counted(server: LyingServer) -> None:
    server.files = {f"/real/{name}": content for name, content in FILES.items()}
    server.redirects = {
        CONFIG: "/real/adapter_config.json",
        WEIGHTS: f"{server.url}/real/adapter_model.safetensors?signature=abc",
    }
    assert await everything(opened(server)) == DATA
    server.redirects[CONFIG] = CONFIG
    assert "more than 5 redirects" in await refused(opened(server), PathNotAllowed)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://169.254.169.254/latest/meta-data/", "leads to a link-local address"),
        ("http://[::ffff:169.254.169.254]/", "leads to a link-local address"),
        ("http://0x7f000001/", "leads to a loopback address"),
        ("http://2130706433/", "not http or https"),
        ("http://localhost:1/", "leads to a loopback address"),
        ("file:///etc/passwd", "not http or https"),
        ("ftp://example.com/", "not http or https"),
        ("http://user:secret@example.com/", "user and password in a URL are not allowed"),
    ],
)
async def test_redirects_never_lead_to_the_nodes_own_addresses(
    server: LyingServer, location: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server is reached under a public address; its redirect is what must fail."""
    reach_as_public(server, monkeypatch)
    server.redirects = {CONFIG: location}
    source = open_source(
        {"http": {"url": f"http://models.example:{server.port}/sql"}},
        namespace="team-a",
        name="sql",
        settings=replace(FAST, allow_private_addresses=False),
        secret=None,
    )
    text = await refused(source, PathNotAllowed)
    assert message in text
    assert "secret" not in text


def reach_as_public(server: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `models.example` resolve to a public address whose connections end at the server."""
    resolve, connect = socket.getaddrinfo, asyncio.SelectorEventLoop.sock_connect

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "models.example":
            address = ("203.0.113.7", port)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]
        return resolve(host, port, *args, **kwargs)

    async def sock_connect(loop: Any, sock: socket.socket, address: Any) -> None:
        if address[0] == "203.0.113.7":
            address = ("127.0.0.1", server.port)
        await connect(loop, sock, address)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", sock_connect)


async def test_a_name_that_resolves_to_another_address_later_is_refused(
    server: LyingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: what counts is the address of each connection, not the first answer."""
    reach_as_public(server, monkeypatch)
    source = open_source(
        {"http": {"url": f"http://models.example:{server.port}/sql"}},
        namespace="team-a",
        name="sql",
        settings=replace(FAST, allow_private_addresses=False),
        secret=None,
    )
    found = await source.resolve()
    assert bytes(await found.read(200_000, 10)) == DATA[200_000:200_010]
    await source.aclose()  # its pooled connections, as the server's time-out would
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, *args, **kwargs: [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))
        ],
    )
    before = len(server.requests)
    with pytest.raises(PathNotAllowed, match="leads to a loopback address"):
        await found.read(300_000, 10)
    assert len(server.requests) == before
    await source.aclose()


async def test_loopback_is_out_of_bounds_unless_the_operator_allows_it(server: LyingServer) -> None:
    text = await refused(
        opened(server, settings=replace(FAST, allow_private_addresses=False)), PathNotAllowed
    )
    assert text == f"{server.url}/sql: leads to a loopback address, not allowed"
    assert server.requests == []


async def test_credentials_stay_with_their_origin(server: LyingServer) -> None:
    secret = {"token": b"canary-token"}
    async with LyingServer(files=server.files).running() as other:
        server.redirects = {
            CONFIG: "/here/adapter_config.json",
            WEIGHTS: f"{other.url}{WEIGHTS}",
        }
        server.files = {"/here/adapter_config.json": FILES["adapter_config.json"]}
        assert await everything(opened(server, secret=secret)) == DATA
        assert {r.headers.get("authorization") for r in server.requests} == {"Bearer canary-token"}
        assert all("authorization" not in request.headers for request in other.requests)


async def test_a_refused_token_names_the_secret_and_not_the_token(server: LyingServer) -> None:
    server.status = 403
    text = await refused(opened(server, secret={"token": b"canary-token"}), AccessDenied)
    assert text == f"403 from {server.url}/sql: Secret team-a/keys key token was sent"
    text = await refused(
        opened(server, secret={"username": b"u", "password": b"canary"}), AccessDenied
    )
    assert text == f"403 from {server.url}/sql: Secret team-a/keys key username was sent"


async def test_the_query_is_sent_and_never_shown(server: LyingServer) -> None:
    source = opened(server, path="/sql/?token=canary-query")
    found = await source.resolve()
    assert found.uri == f"{server.url}/sql"
    assert all(request.path.endswith("?token=canary-query") for request in server.requests)
    await source.aclose()


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


@pytest.mark.parametrize(
    "url",
    [
        "http://user:canary@example.com/x",
        "ftp://example.com/x",
        "http:///x",
        "http://example.com:99999/x",
        "http://example.com/a/../b",
        "http://exa mple.com\n/x",
        "http://[::1/x",
    ],
)
def test_urls_out_of_bounds_are_refused_at_once(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_source({"http": {"url": url}}, namespace="a", name="b", settings=FAST, secret=None)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)
