"""Azure Blob Storage: Azurite checks keys and signatures as Azure does."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.sources.bounds import SourceSettings
from object_servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    azure_sas,
    make_container,
    start_azurite,
    upload_azure,
)
from object_source_rig import DATA, FILES, OTHER, OTHER_DATA, opened, refused, resolved
from servers import LyingServer
from source_builders import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "team a/sql+v1/ü"
KEY = {"accountKey": AZURE_KEY.encode()}
WRONG = {"accountKey": base64.b64encode(b"canary-wrong" * 6)}


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_azurite(tmp_path_factory.mktemp("azure")) as endpoint:
        make_container(endpoint, "models")
        upload_azure(endpoint, "models", PREFIX, FILES)
        yield endpoint


def spec(endpoint_: str, **changes: Any) -> dict[str, Any]:
    given = {"account": AZURE_ACCOUNT, "container": "models", "prefix": PREFIX}
    return given | {"endpoint": endpoint_} | changes


async def test_an_adapter_is_read_with_the_accounts_key(azure: str) -> None:
    found, data = await resolved(opened("azureBlob", spec(azure), KEY))
    assert data == DATA
    assert found.uri == f"az://{AZURE_ACCOUNT}/models/{PREFIX}"
    assert found.revision.startswith("0x"), "the ETag"


@pytest.mark.parametrize("mark", ["", "?"])
async def test_a_shared_access_signature_is_sent_as_it_is(azure: str, mark: str) -> None:
    sas = {"sasToken": f"{mark}{azure_sas('models')}".encode()}
    _, data = await resolved(opened("azureBlob", spec(azure), sas))
    assert data == DATA


async def test_a_new_upload_is_noticed_midway_and_resolved_anew(azure: str) -> None:
    upload_azure(azure, "models", "moving", FILES)
    source = opened("azureBlob", spec(azure, prefix="moving"), KEY)
    first = await source.resolve()
    upload_azure(azure, "models", "moving", OTHER)
    with pytest.raises(SourceChanged, match="changed since it was resolved"):
        await first.read(500_000, 1000)
    again = await source.resolve()
    assert again.fingerprint != first.fingerprint
    assert await read_all(again) == OTHER_DATA
    await source.aclose()


async def test_missing_files_are_named(azure: str) -> None:
    nothing = opened("azureBlob", spec(azure, prefix="nothing"), KEY)
    assert (
        await refused(nothing, SourceNotFound)
        == f"adapter_config.json not found in az://{AZURE_ACCOUNT}/models/nothing"
    )


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (WRONG, "Secret team-a/keys key accountKey was refused or may not read it"),
        (
            {"sasToken": b"sv=2023-11-03&sr=c&sp=r&sig=canary"},
            "Secret team-a/keys key sasToken was refused",
        ),
        ({"token": b"canary-token"}, "Secret team-a/keys key token was refused"),
        (None, "no credentials configured"),
    ],
    ids=["key", "sas", "token", "nobody"],
)
async def test_wrong_credentials_are_one_line_without_them(
    azure: str, secret: dict[str, bytes] | None, message: str
) -> None:
    text = await refused(opened("azureBlob", spec(azure), secret), AccessDenied)
    assert f"from az://{AZURE_ACCOUNT}/models/{PREFIX}: {message}" in text


async def test_a_token_is_a_header_with_the_interfaces_version() -> None:
    files = {f"/models/x/{name}": content for name, content in FILES.items()}
    async with LyingServer(files=files).running() as server:
        token = {"token": b"canary-token"}
        _, data = await resolved(opened("azureBlob", spec(server.url, prefix="x"), token))
        assert data == DATA
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer canary-token"}
        assert {r.headers["x-ms-version"] for r in server.requests} == {"2023-11-03"}


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (
            404,
            "ContainerNotFound",
            SourceNotFound,
            f"container models of account {AZURE_ACCOUNT} does not exist (404 ContainerNotFound)",
        ),
        (409, "PublicAccessNotPermitted", AccessDenied, "no credentials configured"),
        (404, "ResourceNotFound", AccessDenied, "no credentials configured"),
        (503, "ServerBusy", SourceUnavailable, "503 ServerBusy from az://"),
        (500, "a b", SourceUnavailable, "500 from az://"),
        (302, "", SourceUnavailable, "302 from az://"),
    ],
)
async def test_answers_are_one_line_each(
    status: int, code: str, error: type[LorafleetError], message: str
) -> None:
    headers = {"x-ms-error-code": code, "Location": "http://169.254.169.254/"}
    async with LyingServer(status=status, extra_headers=headers).running() as server:
        text = await refused(opened("azureBlob", spec(server.url, prefix="x")), error)
    assert message in text


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ({"password": b"canary"}, "lacks key accountKey or sasToken or token"),
        ({"accountKey": b"canary!"}, "key accountKey is not base64"),
        ({"sasToken": b"canary"}, "key sasToken is not a shared access signature"),
        ({"sasToken": b"sig=canary x"}, "key sasToken is not a shared access signature"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line(secret: dict[str, bytes], message: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        opened("azureBlob", spec("https://blobs.example"), secret)
    assert message in str(caught.value)
    assert "canary" not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"account": "x.evil.example/"}, "is not an account's name"),
        ({"container": "a/../b"}, "is not a container's name"),
        ({"prefix": "../other"}, "must be relative"),
        ({"endpoint": "http://user:canary@example.com"}, "user and password"),
        ({"endpoint": "http://example.com/?a=b"}, "is not an http or https URL"),
    ],
)
def test_addresses_out_of_bounds_are_refused_at_once(changes: dict[str, str], message: str) -> None:
    with pytest.raises(PathNotAllowed, match=message) as caught:
        opened("azureBlob", spec("https://blobs.example", **changes))
    assert "canary" not in str(caught.value)


async def test_an_endpoint_on_the_node_itself_is_out_of_bounds(azure: str) -> None:
    strict = SourceSettings(backoff_s=0.001)
    text = await refused(opened("azureBlob", spec(azure), KEY, strict), PathNotAllowed)
    assert text.endswith("leads to a loopback address, not allowed")
