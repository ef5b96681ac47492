"""Where an HTTP source may go, and what it takes along: redirects, addresses, credentials."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest
from http_source_rig import CONFIG, DATA, FILES, WEIGHTS, everything, opened, refused, server
from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceError,
)
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer
from source_builders import FAST

__all__ = ["server"]  # a fixture


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
        ("http://2130706433/", "no address that http or https could have"),
        ("http://0251.0376.0251.0376/", "no address that http or https could have"),
        ("http://127.1/", "no address that http or https could have"),
        ("http://[::ffff:7f00:1]/", "leads to a loopback address"),
        ("http://[::127.0.0.1]/", "leads to a loopback address"),
        ("http://[64:ff9b::7f00:1]/", "leads to a loopback address"),
        # Full stops of another script, as bytes of UTF-8: a header has no other letters.
        ("http://127\xe3\x80\x820.0.1/", "leads to a loopback address"),
        ("http://a..b/", "no address that http or https could have"),
        ("http://xn--zz.invalid/", "no address that http or https could have"),
        ("http://localhost:1/", "leads to a loopback address"),
        ("file:///etc/passwd", "no address that http or https could have"),
        ("ftp://example.com/", "no address that http or https could have"),
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


@pytest.mark.parametrize(
    ("secret", "hint"),
    [(None, ""), ({"token": b"canary-token"}, "; credentials are not sent there")],
)
async def test_a_refusal_of_another_server_is_not_one_of_the_token(
    server: LyingServer, secret: dict[str, bytes] | None, hint: str
) -> None:
    """An address that begins with http, of a server that wants https, looks so, and an old signature."""
    async with LyingServer(status=403).running() as other:
        server.redirects = {CONFIG: f"http://localhost:{other.port}/x?sig=canary"}
        text = await refused(opened(server, secret=secret), AccessDenied)
        assert text == f"403 from localhost, to which {server.url}/sql redirects{hint}"
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
