"""A real S3 server with real signatures: addresses, credentials, changes, refusals."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import obstore
import pytest
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.base import ResolvedAdapter, Source
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from obstore.store import S3Store
from servers import LyingServer, S3Server, start_s3
from source_builders import FAST, adapter, data_of, read_all

FILES = adapter(elements=1 << 18)
DATA = data_of(FILES["adapter_model.safetensors"])
PREFIX = "team a/sql+v1/ü"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with start_s3(tmp_path_factory.mktemp("s3")) as server:
        (server.root / "models").mkdir()
        upload(server, PREFIX, FILES)
        yield server


def upload(server: S3Server, prefix: str, files: dict[str, bytes]) -> None:
    store = S3Store(
        "models",
        prefix=prefix,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        client_options={"allow_http": True},
    )
    for name, content in files.items():
        obstore.put(store, name, content)


def opened(
    server: S3Server,
    secret: dict[str, bytes] | None = None,
    settings: SourceSettings = FAST,
    *,
    anonymous: bool = False,
    **s3: Any,
) -> Source:
    spec: dict[str, Any] = {
        "s3": {
            "bucket": "models",
            "prefix": PREFIX,
            "endpoint": server.endpoint,
            "pathStyle": True,
            **s3,
        }
    }
    if not anonymous:
        spec["credentialsSecretRef"] = {"name": "s3-keys"}
    return open_source(
        spec,
        namespace="team-a",
        name="sql",
        settings=settings,
        secret=None if anonymous else secret or server.secret(),
    )


async def resolved(source: Source) -> tuple[ResolvedAdapter, bytes]:
    try:
        found = await source.resolve()
        return found, await read_all(found, 300_000)
    finally:
        await source.aclose()


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await resolved(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_an_adapter_is_read_with_signed_ranges(s3: S3Server) -> None:
    found, data = await resolved(opened(s3))
    assert data == DATA
    assert found.uri == f"s3://models/{PREFIX}"
    assert len(found.revision) == 32, "the ETag"


async def test_the_bucket_can_be_a_part_of_the_host_name(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        here = host == f"models.{s3.domain.partition(':')[0]}"
        return resolve("127.0.0.1" if here else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    _, data = await resolved(opened(s3, endpoint=f"http://{s3.domain}", pathStyle=False))
    assert data == DATA


async def test_a_new_upload_is_noticed_midway_and_resolved_anew(s3: S3Server) -> None:
    upload(s3, "moving", FILES)
    source = opened(s3, prefix="moving")
    found = await source.resolve()
    await found.read(0, 1000)
    other = adapter(elements=1 << 18, seed=5)
    upload(s3, "moving", other)
    with pytest.raises(SourceChanged, match="changed since it was resolved"):
        await found.read(500_000, 1000)
    again = await source.resolve()
    assert again.fingerprint != found.fingerprint
    assert await read_all(again) == data_of(other["adapter_model.safetensors"])
    upload(s3, "moving", other)
    assert (await source.resolve()).fingerprint == again.fingerprint, "same content, same ETag"
    await source.aclose()


async def test_missing_things_are_named(s3: S3Server) -> None:
    assert (
        await refused(opened(s3, prefix="nothing"), SourceNotFound)
        == "adapter_config.json not found in s3://models/nothing"
    )
    assert (
        await refused(opened(s3, bucket="no-such-bucket"), SourceNotFound)
        == "bucket no-such-bucket does not exist (404 NoSuchBucket)"
    )
    upload(s3, "half", {"adapter_config.json": b"{}"})
    text = await refused(opened(s3, prefix="half"), SourceNotFound)
    assert text.startswith("no adapter_model.safetensors, ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"secretAccessKey": b"canary-wrong"}, "403 SignatureDoesNotMatch"),
        ({"accessKeyID": b"canary-wrong"}, "XAdminUserNotFound"),
    ],
)
async def test_wrong_credentials_are_one_line_without_them(
    s3: S3Server, change: dict[str, bytes], message: str
) -> None:
    text = await refused(opened(s3, {**s3.secret(), **change}), AccessDenied)
    assert message in text
    assert text.endswith(
        f"from s3://models/{PREFIX}: the credentials of Secret team-a/s3-keys were refused"
    )
    assert "canary" not in text


async def test_missing_credentials_are_one_line(s3: S3Server) -> None:
    assert (
        await refused(opened(s3, anonymous=True), AccessDenied)
        == f"403 AccessDenied from s3://models/{PREFIX}: no credentials configured"
    )
    with pytest.raises(AccessDenied, match="Secret team-a/s3-keys lacks key secretAccessKey"):
        opened(s3, {"accessKeyID": b"x"})


async def test_the_operators_own_identity_never_signs(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's environment holds working keys; a tenant without keys must not get them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    text = await refused(opened(s3, anonymous=True), AccessDenied)
    assert text.endswith("no credentials configured")


async def test_nothing_of_the_operators_environment_reaches_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_SESSION_TOKEN": "canary-session",
        "AWS_ENDPOINT_URL": "http://canary.example",
        "AWS_ENDPOINT": "http://canary.example",
        "AWS_REQUEST_PAYER": "true",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_S3_EXPRESS": "true",
        "AWS_DEFAULT_REGION": "canary-1",
        "AWS_REGION": "canary-1",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/canary",
        "HTTP_PROXY": "http://canary.example",
        "http_proxy": "http://canary.example",
    }.items():
        monkeypatch.setenv(name, value)
    async with LyingServer(files={f"/models/x/{k}": v for k, v in FILES.items()}).running() as web:
        fake = S3Server(web.url, Path(), "AKID", "key", "")
        _, data = await resolved(opened(fake, prefix="x"))
        assert data == DATA
        for request in web.requests:
            assert "canary" not in request.path
            assert "canary" not in str(request.headers)
            assert "X-Amz-Credential=AKID%2F" in request.path
            assert "%2Fus-east-1%2Fs3" in request.path
        web.requests.clear()
        _, data = await resolved(opened(fake, prefix="x", anonymous=True))
        assert data == DATA
        assert {request.path.partition("?")[1] for request in web.requests} == {""}


async def test_a_session_token_is_signed_along() -> None:
    async with LyingServer(files={f"/models/x/{k}": v for k, v in FILES.items()}).running() as web:
        fake = S3Server(web.url, Path(), "AKID", "key", "")
        await resolved(opened(fake, {**fake.secret(), "sessionToken": b"tok/en"}, prefix="x"))
        assert all("X-Amz-Security-Token=tok%2Fen" in request.path for request in web.requests)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((403, b"<Code>AccessDenied</Code>"), AccessDenied, "may not read it"),
        (
            (403, b"<Code>RequestTimeTooSkewed</Code>"),
            AccessDenied,
            "the operator's clock is wrong",
        ),
        ((400, b"<Code>ExpiredToken</Code>"), AccessDenied, "were refused"),
        ((301, b"<Code>PermanentRedirect</Code>"), SourceNotFound, "is in region eu-west-7"),
        ((503, b"<Code>SlowDown</Code>"), SourceUnavailable, "503 SlowDown from s3://models/x"),
        ((404, b"<Code>Odd</Code>"), SourceUnavailable, "404 Odd"),
        ((500, b"<Code>a\nb</Code>"), SourceUnavailable, "500 from s3://models/x"),
        ((307, b""), SourceNotFound, "is in region eu-west-7"),
    ],
)
async def test_answers_of_other_s3_servers_are_one_line_each(
    answer: tuple[int, bytes], error: type[LorafleetError], message: str
) -> None:
    headers = {"x-amz-bucket-region": "eu-west-7"} if answer[0] in (301, 307) else {}
    async with LyingServer(
        status=answer[0], body=answer[1], extra_headers=headers
    ).running() as web:
        fake = S3Server(web.url, Path(), "AKID", "canary", "")
        text = await refused(opened(fake, prefix="x"), error)
    assert message in text
    assert "canary" not in text


async def test_a_redirect_of_an_s3_server_is_not_followed() -> None:
    async with LyingServer().running() as web:
        web.redirects = {"/models/x/adapter_config.json": "http://169.254.169.254/latest"}
        fake = S3Server(web.url, Path(), "AKID", "canary", "")
        text = await refused(opened(fake, prefix="x"), SourceUnavailable)
    assert text == "302 from s3://models/x"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"bucket": "a/../b"}, "is not a bucket's name"),
        ({"bucket": "a..b"}, "is not a bucket's name"),
        ({"prefix": "../other"}, "must be relative"),
        ({"region": "x.evil.example/"}, "is not a region's name"),
        ({"endpoint": "http://user:canary@example.com"}, "user and password"),
        ({"endpoint": "file:///etc"}, "is not an http or https URL"),
        ({"endpoint": "http://example.com/?a=b"}, "is not an http or https URL"),
    ],
)
def test_addresses_out_of_bounds_are_refused_at_once(spec: dict[str, str], message: str) -> None:
    fake = S3Server("http://127.0.0.1:1", Path(), "AKID", "canary", "")
    with pytest.raises(PathNotAllowed, match=message) as caught:
        opened(fake, **spec)
    assert "canary" not in str(caught.value)


async def test_an_endpoint_on_the_node_itself_is_out_of_bounds(s3: S3Server) -> None:
    settings = SourceSettings(backoff_s=0.001)
    text = await refused(opened(s3, settings=settings), PathNotAllowed)
    assert text == f"s3://models/{PREFIX}: leads to a loopback address, not allowed"


def test_the_http_client_can_show_us_each_address_it_connects_to() -> None:
    """What the bounds rest on; an older aiohttp would ignore the check in silence."""
    assert tuple(map(int, aiohttp.__version__.split(".")[:2])) >= (3, 12)
