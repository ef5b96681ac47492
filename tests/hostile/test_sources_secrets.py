"""No credential in any text: messages, chains of exceptions, logs, reprs, addresses in status."""

import asyncio
import json
import logging
import socket
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lorafleet.errors import AccessDenied, LorafleetError, SourceError, SourceUnavailable
from lorafleet_operator.sources.base import Source
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer, S3Server, start_s3
from source_builders import FAST, adapter, artifact, data_of, read_all

CANARY = "cAnArY5f3a"
COMMIT = "a" * 40
SECRET = {
    "accessKeyID": f"AKID{CANARY}".encode(),
    "secretAccessKey": f"key{CANARY}".encode(),
    "sessionToken": f"session{CANARY}".encode(),
    "token": f"token{CANARY}".encode(),
    "sasToken": f"sv=2023-11-03&sig=sas{CANARY}".encode(),
}
PRIVATE_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
ACCOUNT = {"type": "service_account", "client_email": f"{CANARY}@x", "private_key_id": CANARY}
SERVICE_ACCOUNT = json.dumps({**ACCOUNT, "private_key": PRIVATE_KEY.decode()}).encode()
CONNECTION = f"AccountName=account;SharedAccessSignature=sv=2023-11-03&sig=sas{CANARY}".encode()
LOGIN = {"username": f"user{CANARY}".encode(), "password": b"x"}
KINDS: dict[str, tuple[str, dict[str, bytes]]] = {
    "s3": ("s3", SECRET),
    "http": ("http", SECRET),
    "http, user": ("http", LOGIN),
    "gcs": ("gcs", SECRET),
    "gcs, key": ("gcs", {"serviceAccountKey": SERVICE_ACCOUNT}),
    "azure": ("azureBlob", SECRET),
    "azure, connection": ("azureBlob", {"connectionString": CONNECTION}),
    "oci": ("oci", SECRET),
    "hub": ("huggingFace", SECRET),
}
FILES = adapter(elements=1 << 16)


def served() -> dict[str, bytes]:
    """The files below /models/sql, as the artifact models/sql:v1 and as the hub's models/sql."""
    files = {f"/models/sql/{name}": content for name, content in FILES.items()}
    hub = {f"/models/sql/resolve/{COMMIT}/{name}": content for name, content in FILES.items()}
    hub["/api/models/models/sql/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    return files | hub | artifact(FILES, "models/sql", "v1")


def specs(url: str, query: str = "") -> dict[str, dict[str, Any]]:
    """The adapter of `served`, as each kind of source names it."""
    scheme, _, host = url.partition("://")
    bucket = {"bucket": "models", "prefix": "sql", "endpoint": url}
    blob = {"account": "account", "container": "models", "prefix": "sql", "endpoint": url}
    return {
        "s3": {**bucket, "pathStyle": True},
        "http": {"url": f"{url}/models/sql{query}"},
        "gcs": bucket,
        "azureBlob": blob,
        "oci": {"reference": f"{host}/models/sql:v1", "plainHttp": scheme == "http"},
        "huggingFace": {"repo": "models/sql", "endpoint": url},
    }


def opened(spec: dict[str, Any], secret: dict[str, bytes]) -> Source:
    return open_source(
        {**spec, "credentialsSecretRef": {"name": "keys"}},
        namespace="team-a",
        name="sql",
        settings=FAST,
        secret=secret,
    )


def everything_said(error: BaseException | None) -> str:
    """Return all texts of an exception and of all that it is chained to."""
    said = ""
    while error is not None:
        said += repr(error) + str(vars(error)) + "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return said


LIES: list[dict[str, Any]] = [
    {},
    {"status": 401},
    {"status": 403, "body": f"<Code>SignatureDoesNotMatch</Code>{CANARY}".encode()},
    {"status": 404, "body": CANARY.encode()},
    {"status": 500, "body": f"<Code>{CANARY} </Code>".encode()},
    {"extra_headers": {"X-Large": "x" * 100_000}},
    {"extra_headers": {"Content-Length": "nonsense"}},
    {"drop_after": 10, "drops": 1000},
    {"drop_after": 100_000, "drops": 1000, "ranges": False},
    {"files": {}, "redirects": {"/models/sql/adapter_config.json": f"http://[bad/{CANARY}"}},
    {"redirects": {"/models/sql/adapter_config.json": f"http://a.invalid/?x={CANARY}"}},
    {"redirects": {"/models/sql/adapter_config.json": f"http://u:{CANARY}@a.invalid/"}},
    {"redirects": {"/models/sql/adapter_config.json": f"gopher://{CANARY}/"}},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
async def test_no_failure_says_a_credential(
    kind: str, lie: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    name, secret = KINDS[kind]
    server = LyingServer(files=served())
    async with server.running():
        vars(server).update(lie)
        source = opened({name: specs(server.url, f"?sig={CANARY}")[name]}, secret)
        said = repr(source) + source.uri
        try:
            found = await source.resolve()
            await read_all(found, 100_000)
            said += repr(found)
            server.status = 403
            await found.read(100_000, 10)
        except LorafleetError as error:
            said += everything_said(error)
        finally:
            await source.aclose()
        assert any(CANARY in f"{r.path} {r.headers}" for r in server.requests), "it was sent"
    assert CANARY not in said
    assert CANARY not in caplog.text


async def test_no_connection_failure_says_a_credential(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for spec in (
            {"http": {"url": f"{url}/x?sig={CANARY}"}},
            {"s3": {"bucket": "models", "prefix": "x", "endpoint": url, "pathStyle": True}},
            {"http": {"url": f"http://nowhere.invalid/x?sig={CANARY}"}},
        ):
            source = opened(spec, SECRET)
            with pytest.raises(SourceUnavailable) as caught:
                await source.resolve()
            await source.aclose()
            assert CANARY not in everything_said(caught.value)
    assert CANARY not in caplog.text


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    found = Authority("test authority")
    found.write(tmp_path / "tls", "server")
    return found


@pytest.fixture
def tls_s3(authority: Authority, tmp_path: Path) -> Iterator[S3Server]:
    pair = (tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    with start_s3(tmp_path, certificate=pair) as server:
        folder = server.root / "models" / "sql"
        folder.mkdir(parents=True)
        for name, content in FILES.items():
            (folder / name).write_bytes(content)
        yield server


async def test_s3_with_an_authority_of_its_own(tls_s3: S3Server, authority: Authority) -> None:
    spec = {
        "s3": {
            "bucket": "models",
            "prefix": "sql",
            "endpoint": tls_s3.endpoint,
            "pathStyle": True,
        }
    }
    source = opened(spec, {**tls_s3.secret(), "caBundle": authority.certificate})
    data = await read_all(await source.resolve())
    assert data == data_of(FILES["adapter_model.safetensors"])
    await source.aclose()
    source = opened(spec, tls_s3.secret())
    with pytest.raises(SourceUnavailable, match="certificate not trusted") as caught:
        await source.resolve()
    assert "\n" not in str(caught.value)
    await source.aclose()
    source = opened(spec, {**tls_s3.secret(), "caBundle": Authority("other").certificate})
    with pytest.raises(SourceUnavailable, match="certificate not trusted"):
        await source.resolve()
    await source.aclose()


@pytest.mark.parametrize("kind", ["s3", "http", "gcs", "azureBlob", "oci", "huggingFace"])
async def test_https_with_an_authority_of_its_own(
    kind: str, authority: Authority, tmp_path: Path
) -> None:
    """A Secret may hold the authority alone: then what is public is read from such a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    async with LyingServer(files=served()).running(context) as server:
        spec = {kind: specs(server.url)[kind]}
        source = opened(spec, {"caBundle": authority.certificate})
        found = await source.resolve()
        assert await read_all(found) == data_of(FILES["adapter_model.safetensors"])
        await found.confirm()
        await source.aclose()
        assert not [r for r in server.requests if "?" in r.path or "authorization" in r.headers]
        source = opened(spec, {"caBundle": Authority("other").certificate})
        with pytest.raises(SourceUnavailable, match="certificate not trusted"):
            await source.resolve()
        await source.aclose()
        away = {r.path: f"http://127.0.0.1:{server.port}/x" for r in server.requests}
        server.redirects = away
        source = opened(spec, {"caBundle": authority.certificate})
        with pytest.raises(SourceError, match=r"redirects from https to http|302 from ") as caught:
            await source.resolve()
        assert "\n" not in str(caught.value)
        await source.aclose()


def test_a_bundle_without_a_certificate_is_one_line() -> None:
    for bundle in (b"nonsense", f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n".encode()):
        with pytest.raises(AccessDenied) as caught:
            opened({"http": {"url": "https://example.com/x"}}, {"caBundle": bundle})
        text = "Secret team-a/keys key caBundle holds no certificate in PEM form"
        assert str(caught.value) == text
        assert CANARY not in everything_said(caught.value)
