"""Google Cloud Storage: a real server of objects, and a seam for what it does not check."""

from __future__ import annotations

import json
import urllib.parse
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
)
from object_servers import put_gcs, start_gcs
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
from servers import LyingServer, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
TOKEN = {"token": b"canary-token"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStore]:
    with start_gcs(tmp_path_factory.mktemp("gcs"), "models") as endpoint:
        running = RealStore(
            kind="gcs",
            endpoint=endpoint,
            root="gs://models",
            place={"bucket": "models"},
            secret=account(),
            put=partial(put_gcs, endpoint, "models"),
            passes=2,
            no_bucket={},  # this server does not tell it from a missing object
        )
        running.upload(PREFIX, FILES)
        yield running


class TestGcs(StoreContract):
    """gcp-storage-emulator, which tells no version: the content itself is compared."""


def spec(endpoint_: str, **changes: Any) -> dict[str, Any]:
    return {"bucket": "models", "prefix": "x", "endpoint": endpoint_} | changes


def account(**changes: Any) -> dict[str, bytes]:
    """The Secret with a service account's key, as Google hands it out: several lines."""
    pem = KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    key = {
        "type": "service_account",
        "client_email": "reader@project.iam.gserviceaccount.com",
        "private_key": pem.decode(),
        "private_key_id": "canary-key-id",
        "token_uri": "http://169.254.169.254/token",
        **changes,
    }
    return {"serviceAccountKey": json.dumps(key, indent=2).encode()}


@pytest.mark.parametrize("secret", [None, TOKEN], ids=["nobody", "token"])
async def test_an_adapter_is_read_without_a_key(
    store: RealStore, secret: dict[str, bytes] | None
) -> None:
    _, data = await resolved(opened("gcs", store.spec(), secret))
    assert data == DATA


def google(folder: str = "x", **fields: Any) -> LyingServer:
    """A server that names generations, as Google's does."""
    files = {f"/models/{folder}/{name}": content for name, content in FILES.items()}
    return LyingServer(
        files=files, extra_headers={"x-goog-generation": "1700000000000001"}, **fields
    )


async def test_the_generation_is_the_version_also_when_the_bytes_are_the_same() -> None:
    async with google(etag="content").running() as server:
        source = opened("gcs", spec(server.url))
        first = await source.resolve()
        assert first.revision == "1700000000000001"
        server.extra_headers["x-goog-generation"] = "1700000000000002"
        with pytest.raises(SourceChanged, match=r"\(generation 1700000000000002\)"):
            await first.read(500_000, 1000)
        again = await source.resolve()
        assert again.revision == "1700000000000002"
        assert again.fingerprint != first.fingerprint
        await source.aclose()


def signed_by_key(server: LyingServer, request: Request) -> bool:
    """Whether Google would accept the address, by its own rules for V4 signatures."""
    path, _, query = request.path.partition("?")
    given = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
    signature = bytes.fromhex(given.pop("X-Goog-Signature"))
    assert given["X-Goog-SignedHeaders"] == "host"
    assert not [name for name in request.headers if name.startswith("x-goog")]
    sorted_query = urllib.parse.urlencode(sorted(given.items()), quote_via=urllib.parse.quote)
    sorted_query = sorted_query.replace("/", "%2F")
    host = request.headers["host"]
    canonical = f"GET\n{path}\n{sorted_query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashes.Hash(hashes.SHA256())
    digest.update(canonical.encode())
    scope = given["X-Goog-Credential"].partition("/")[2]
    text = f"GOOG4-RSA-SHA256\n{given['X-Goog-Date']}\n{scope}\n{digest.finalize().hex()}"
    KEY.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return True


async def test_an_accounts_key_signs_each_address_and_is_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the operator itself is given must not sign for a tenant.
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "operators-own")
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://169.254.169.254")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/operators-own.json")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    async with google("team%20a/sql%2Bv1/%C3%BC").running() as server:
        _, data = await resolved(opened("gcs", spec(server.url, prefix=PREFIX), account()))
        assert data == DATA
        assert len(server.requests) > 2
        assert all(signed_by_key(server, request) for request in server.requests)
        assert not [r for r in server.requests if "authorization" in r.headers]


def test_an_environment_that_keeps_the_key_from_signing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/operators-own.json")
    with pytest.raises(AccessDenied, match="own environment sets GOOGLE_SERVICE_ACCOUNT; take it"):
        opened("gcs", spec("https://storage.example"), account())


async def test_a_token_is_a_header_and_nobody_sends_none() -> None:
    async with google().running() as server:
        await resolved(opened("gcs", spec(server.url), TOKEN))
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer canary-token"}
        server.requests.clear()
        await resolved(opened("gcs", spec(server.url)))
        assert not [r for r in server.requests if "authorization" in r.headers or "?" in r.path]


@pytest.mark.parametrize(
    ("secret", "status", "code", "error", "message"),
    [
        (
            TOKEN,
            401,
            "AuthenticationRequired",
            AccessDenied,
            "Secret team-a/keys key token was refused",
        ),
        (
            account(),
            403,
            "SignatureDoesNotMatch",
            AccessDenied,
            "key serviceAccountKey was refused",
        ),
        (account(), 403, "AccessDenied", AccessDenied, "key serviceAccountKey may not read it"),
        (None, 403, "AccessDenied", AccessDenied, "no credentials configured"),
        (
            TOKEN,
            404,
            "NoSuchBucket",
            SourceNotFound,
            "bucket models does not exist (404 NoSuchBucket)",
        ),
        (TOKEN, 503, "SlowDown", SourceUnavailable, "503 SlowDown from gs://models/x"),
        (TOKEN, 302, "", SourceUnavailable, "302 from gs://models/x"),
    ],
)
async def test_refusals_are_one_line_each(
    secret: dict[str, bytes] | None,
    status: int,
    code: str,
    error: type[LorafleetError],
    message: str,
) -> None:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    headers = {"Location": "http://169.254.169.254/"}
    async with LyingServer(status=status, body=body, extra_headers=headers).running() as server:
        text = await refused(opened("gcs", spec(server.url), secret), error)
    assert message in text


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ({"password": b"canary"}, "Secret team-a/keys lacks key serviceAccountKey or token"),
        ({"serviceAccountKey": b"canary"}, "holds no service account key in JSON"),
        (account(type="authorized_user"), "holds no service account key in JSON"),
        (account(private_key=""), "holds no service account key in JSON"),
        (account(private_key="canary"), "holds no service account key in JSON"),
        ({"token": b"canary\ntoken"}, "key token is not one line of text"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line(secret: dict[str, bytes], message: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        opened("gcs", spec("https://storage.example"), secret)
    assert message in str(caught.value)
    assert "canary" not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bucket": "a/../b"}, "is not a bucket's name"),
        ({"bucket": "a..b"}, "is not a bucket's name"),
        ({"prefix": "../other"}, "must be relative"),
        ({"endpoint": "http://user:canary@example.com"}, "user and password"),
        ({"endpoint": "file:///etc"}, "is not an http or https URL"),
    ],
)
def test_addresses_out_of_bounds_are_refused_at_once(changes: dict[str, str], message: str) -> None:
    with pytest.raises(PathNotAllowed, match=message) as caught:
        opened("gcs", spec("https://storage.example", **changes))
    assert "canary" not in str(caught.value)
