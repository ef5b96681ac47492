"""A real S3 server with real signatures, and servers of the tests' own for what that one lacks."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import socket
import urllib.parse
from typing import TYPE_CHECKING, Any

import aiohttp
import obstore
import pytest
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.s3 import S3Source
from object_source_rig import (
    DATA,
    FILES,
    PREFIX,
    RealStore,
    StoreContract,
    opened,
    refused,
    resolved,
)
from obstore.store import S3Store
from servers import LyingServer, Request, S3Server, start_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_operator.sources.base import Source


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with start_s3(tmp_path_factory.mktemp("s3")) as server:
        for bucket in ("models", "team.models"):
            (server.root / bucket).mkdir()
        yield server


@pytest.fixture(scope="module")
def store(s3: S3Server) -> RealStore:
    bucket = S3Store(
        "models",
        endpoint=s3.endpoint,
        region="us-east-1",
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        client_options={"allow_http": True},
    )
    running = RealStore(
        kind="s3",
        endpoint=s3.endpoint,
        root="s3://models",
        place={"bucket": "models", "pathStyle": True},
        secret=s3.secret(),
        put=lambda key, content: obstore.put(bucket, key, content),
        no_bucket={"bucket": "bucket no-such does not exist (404 NoSuchBucket)"},
    )
    running.upload(PREFIX, FILES)
    return running


class TestS3(StoreContract):
    """Versitygw."""


KEYS = {"accessKeyID": b"AKID", "secretAccessKey": b"canary"}
SERVED = {f"/models/x/{name}": content for name, content in FILES.items()}


def fake(server: LyingServer, secret: dict[str, bytes] | None = None, **s3: Any) -> Source:
    """A bucket of a server of the test's own."""
    spec = {"bucket": "models", "prefix": "x", "endpoint": server.url, "pathStyle": True, **s3}
    return opened("s3", spec, secret)


@pytest.mark.parametrize(
    ("bucket", "style"),
    [("models", False), ("team.models", False), ("team.models", True)],
)
async def test_the_bucket_is_a_part_of_the_host_name_or_of_the_path(
    s3: S3Server, store: RealStore, monkeypatch: pytest.MonkeyPatch, bucket: str, style: bool
) -> None:
    resolve = socket.getaddrinfo
    host_names = []

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        host_names.append(host)
        here = str(host).endswith(s3.domain.partition(":")[0])
        return resolve("127.0.0.1" if here else host, *args, **kwargs)

    other = s3.root / "team.models" / PREFIX
    if not other.exists():
        shutil.copytree(s3.root / "models" / PREFIX, other)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    endpoint = f"http://{s3.domain}"
    source = store.opened(bucket=bucket, endpoint=endpoint, pathStyle=style)
    _, data = await resolved(source)
    assert data == DATA
    host = s3.domain.partition(":")[0]
    assert set(host_names) == {host if style else f"{bucket}.{host}"}


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ({}, "https://models.s3.eu-west-1.amazonaws.com/x/"),
        ({"pathStyle": True}, "https://s3.eu-west-1.amazonaws.com/models/x/"),
        ({"bucket": "a.b"}, "https://s3.eu-west-1.amazonaws.com/a.b/x/"),
        ({"region": "cn-north-1"}, "https://models.s3.cn-north-1.amazonaws.com.cn/x/"),
        ({"endpoint": "https://[fd00::7]:9000/"}, "https://[fd00::7]:9000/models/x/"),
        ({"endpoint": "http://minio.example/s3"}, "http://models.minio.example/s3/x/"),
    ],
    ids=str,
)
async def test_both_styles_of_address(spec: dict[str, Any], url: str) -> None:
    given = {"bucket": "models", "prefix": "x", "region": "eu-west-1", **spec}
    source = opened("s3", given)
    assert isinstance(source, S3Source)
    assert (await source.address("x/adapter_config.json")).url == f"{url}adapter_config.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"secretAccessKey": b"canary-wrong"}, "403 SignatureDoesNotMatch"),
        ({"accessKeyID": b"canary-wrong"}, "XAdminUserNotFound"),
    ],
)
async def test_wrong_credentials_are_one_line_without_them(
    s3: S3Server, store: RealStore, change: dict[str, bytes], message: str
) -> None:
    wrong = {**s3.secret(), **change}
    text = await refused(opened("s3", store.spec(), wrong), AccessDenied)
    assert message in text
    assert text.endswith(
        f"from s3://models/{PREFIX}: the credentials of Secret team-a/keys were refused"
    )


async def test_missing_credentials_are_one_line(store: RealStore) -> None:
    assert (
        await refused(opened("s3", store.spec()), AccessDenied)
        == f"403 AccessDenied from s3://models/{PREFIX}: no credentials configured"
    )
    with pytest.raises(AccessDenied, match="Secret team-a/keys lacks key secretAccessKey"):
        opened("s3", store.spec(), {"accessKeyID": b"x"})


async def test_the_operators_own_identity_never_signs(
    s3: S3Server, store: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's environment holds working keys; a tenant without keys must not get them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    text = await refused(opened("s3", store.spec()), AccessDenied)
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
    async with LyingServer(files=SERVED).running() as web:
        _, data = await resolved(fake(web, KEYS))
        assert data == DATA
        for request in web.requests:
            assert "canary" not in request.path
            assert "canary" not in str(request.headers)
            assert "X-Amz-Credential=AKID%2F" in request.path
            assert "%2Fus-east-1%2Fs3" in request.path
        web.requests.clear()
        _, data = await resolved(fake(web))
        assert data == DATA
        assert {request.path.partition("?")[1] for request in web.requests} == {""}


def signed_by_key(request: Request, key: str) -> bool:
    """Whether Amazon would accept the address, by its own rules for signatures in a query."""
    path, _, query = request.path.partition("?")
    given = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
    signature = given.pop("X-Amz-Signature")
    sorted_query = urllib.parse.urlencode(
        sorted(given.items()), quote_via=urllib.parse.quote, safe=""
    )
    host = request.headers["host"]
    canonical = f"GET\n{path}\n{sorted_query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    scope = given["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    secret = f"AWS4{key}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{given['X-Amz-Date']}\n{scope}\n{digest}"
    return hmac.new(secret, text.encode(), "sha256").hexdigest() == signature


async def test_a_session_token_is_signed_along(s3: S3Server, store: RealStore) -> None:
    async with LyingServer(files=SERVED).running() as web:
        await resolved(fake(web, {**KEYS, "sessionToken": b"tok/en+="}))
        assert all("X-Amz-Security-Token=tok%2Fen%2B%3D" in r.path for r in web.requests)
        assert all(
            signed_by_key(request, KEYS["secretAccessKey"].decode()) for request in web.requests
        )
    wrong = {**s3.secret(), "sessionToken": b"canary"}
    assert await refused(opened("s3", store.spec(), wrong), AccessDenied) == (
        f"400 InvalidToken from s3://models/{PREFIX}: "
        "the credentials of Secret team-a/keys were refused"
    )


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
        text = await refused(fake(web, KEYS), error)
    assert message in text


async def test_a_redirect_of_an_s3_server_is_not_followed() -> None:
    async with LyingServer().running() as web:
        web.redirects = {"/models/x/adapter_config.json": "http://169.254.169.254/latest"}
        text = await refused(fake(web, KEYS), SourceUnavailable)
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
    with pytest.raises(PathNotAllowed, match=message) as caught:
        fake(LyingServer(), KEYS, **spec)
    assert "canary" not in str(caught.value)


def test_the_http_client_can_show_us_each_address_it_connects_to() -> None:
    """What the bounds rest on; an older aiohttp would ignore the check in silence."""
    assert tuple(map(int, aiohttp.__version__.split(".")[:2])) >= (3, 12)
