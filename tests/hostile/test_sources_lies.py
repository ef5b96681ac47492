"""A web server that lies, stalls, refuses and never ends: one line for each."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest
from http_source_rig import (
    CONFIG,
    DATA,
    FILES,
    LENGTH,
    WEIGHTS,
    everything,
    opened,
    refused,
    server,
)
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
    TooLarge,
)
from servers import LyingServer, Request, serving
from source_builders import FAST

__all__ = ["server"]  # a fixture


@pytest.mark.parametrize("until", ["0", "Sun, 29 Nov 2020 10:00:00 GMT", "nonsense", ""])
async def test_a_busy_server_is_asked_again(server: LyingServer, until: str) -> None:
    def busy(server: LyingServer, request: Request) -> None:
        server.status = (503, 429, None)[len(server.requests) % 3 - 1]

    server.extra_headers = {"Retry-After": until} if until else {}
    server.on_request = busy
    assert await everything(opened(server)) == DATA


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_asks_for_a_long_wait_is_left_alone(
    server: LyingServer, status: int
) -> None:
    server.status, server.extra_headers = status, {"Retry-After": "3600"}
    text = await refused(opened(server), SourceUnavailable)
    assert text == f"{server.url}/sql: HTTP status {status} (asks to wait 3600 s)"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("lie", "error", "message"),
    [
        ({"content_range": "bytes 0-9/5"}, SourceUnavailable, "other bytes than asked for"),
        ({"content_range": "bytes 7-9/99999"}, SourceUnavailable, "other bytes than asked for"),
        ({"content_range": "bytes 200000-200009/*"}, SourceUnavailable, "other bytes than asked"),
        ({"content_range": "bytes 200000-200999/5000000"}, SourceChanged, "has 5000000 bytes, "),
        ({"extra_headers": {"Content-Encoding": "gzip"}}, SourceUnavailable, "compresses what it"),
        ({"extra_headers": {"ETag": '"a"', "x-goog-generation": "7"}}, SourceChanged, "changed"),
        ({"status": 416}, SourceChanged, "changed since it was resolved"),
        ({"status": 204}, SourceUnavailable, "HTTP status 204"),
        ({"status": 401}, AccessDenied, "401 from {url}/sql: no credentials configured"),
    ],
    ids=str,
)
async def test_lies_of_a_read_are_one_line_each(
    server: LyingServer, lie: dict[str, Any], error: type[LorafleetError], message: str
) -> None:
    source = opened(server)
    found = await source.resolve()
    vars(server).update(lie)
    with pytest.raises(error) as caught:
        await found.read(200_000 - LENGTH, 1000)
    assert message.format(url=server.url) in str(caught.value)
    assert "\n" not in str(caught.value)
    await source.aclose()


async def test_a_length_that_is_a_lie_never_shifts_a_byte(server: LyingServer) -> None:
    source = opened(server)
    found = await source.resolve()
    server.claims = 100
    assert await found.read(200_000, 100_000) == DATA[200_000:300_000]
    server.claims = -100  # the rest of an answer would be the begin of the next one's
    with pytest.raises(SourceUnavailable, match=r"broken answer|ended at byte"):
        await found.read(200_000, 100_000)
    await source.aclose()


async def test_an_etag_of_its_own_for_each_answer_is_one_line(server: LyingServer) -> None:
    def change(server: LyingServer, request: Request) -> None:
        server.etag = f'"{len(server.requests)}"'

    server.on_request = change
    text = await refused(opened(server), SourceChanged)
    assert text == f"adapter_model.safetensors in {server.url}/sql: changed since it was resolved"


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


async def test_a_read_that_only_drips_is_given_up() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        start, size = 200_000 + LENGTH, len(FILES["adapter_model.safetensors"])
        told = f"bytes {start}-{start + 999}/{size}"
        head = f'HTTP/1.1 206 x\r\nETag: "v1"\r\nContent-Range: {told}\r\n'
        writer.write(f"{head}Content-Length: 1000\r\n\r\n".encode())
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    honest = LyingServer(files={f"/sql/{name}": content for name, content in FILES.items()})
    async with honest.running():
        source = opened(honest, settings=replace(FAST, read_timeout_s=2.0))
        found = await source.resolve()
        await source.aclose()
    async with serving(drip, port=honest.port):
        with pytest.raises(SourceUnavailable, match=r": \d+ of 1000 bytes at \d+ after 2 s$"):
            await found.read(200_000, 1000)
        await source.aclose()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"status": 500}, SourceUnavailable, ": HTTP status 500"),
        ({"claims": 100, "ranges": False}, SourceUnavailable, "the answer broke off"),
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


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
async def test_a_body_without_end_stops_at_the_limit(server: LyingServer, name: str) -> None:
    """Nothing of it is kept: the head that was read in vain is all that is held."""

    def only_here(server: LyingServer, request: Request) -> None:
        server.endless = request.path == name

    server.on_request, server.length, server.ranges = only_here, False, False
    small = replace(FAST, max_adapter_bytes=4 << 20)
    limit = 1 << 20 if name == CONFIG else (4 << 20) + 100_000_008
    text = await refused(opened(server, settings=small), TooLarge)
    file = name.rpartition("/")[2]
    assert text == (
        f"{file} in {server.url}/sql has more than {limit} bytes, at most {limit} are allowed"
    )


async def test_a_promise_above_the_limit_is_refused_before_the_body(server: LyingServer) -> None:
    server.ranges, server.claims = False, 2 << 20
    text = await refused(opened(server), TooLarge)
    have = len(server.files[CONFIG]) + server.claims
    assert text == (
        f"adapter_config.json in {server.url}/sql has {have} bytes, at most 1048576 are allowed"
    )


async def test_nobody_at_the_address_is_one_line(server: LyingServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.port = unused.getsockname()[1]
        text = await refused(opened(server), SourceUnavailable)
    assert text.startswith(
        f"{server.url}/sql: cannot connect to {server.url.removeprefix('http://')} ("
    )
