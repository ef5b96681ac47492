"""Azure Blob Storage: Azurite checks keys and signatures as Azure does."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from lorafleet.errors import (
    AccessDenied,
    LorafleetError,
    PathNotAllowed,
    SourceNotFound,
    SourceUnavailable,
)
from lorafleet_operator.inspection.addresses import open_address
from object_servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    azure_sas,
    azure_store,
    make_container,
    start_azurite,
)
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
from servers import LyingServer

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = {"accountKey": AZURE_KEY.encode()}
WRONG = {"accountKey": base64.b64encode(b"canary-wrong" * 6)}


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_azurite(tmp_path_factory.mktemp("azure")) as endpoint:
        make_container(endpoint, "models")
        yield endpoint


@pytest.fixture(scope="module")
def store(azure: str) -> RealStore:
    container = azure_store(azure, "models")
    running = RealStore(
        kind="azureBlob",
        endpoint=azure,
        root=f"az://{AZURE_ACCOUNT}/models",
        place={"account": AZURE_ACCOUNT, "container": "models"},
        secret=KEY,
        put=lambda key, content: obstore.put(container, key, content),
        no_bucket={
            "container": f"container no-such of account {AZURE_ACCOUNT} does not exist "
            "(404 ContainerNotFound)"
        },
        same_again=False,
    )
    running.upload(PREFIX, FILES)
    return running


class TestAzure(StoreContract):
    """Azurite."""


def spec(endpoint_: str, **changes: Any) -> dict[str, Any]:
    given = {"account": AZURE_ACCOUNT, "container": "models", "prefix": "x"}
    return given | {"endpoint": endpoint_} | changes


async def test_the_etag_is_the_version(store: RealStore) -> None:
    found, _ = await resolved(store.opened())
    assert found.revision.startswith("0x")


@pytest.mark.parametrize("mark", ["", "?"])
async def test_a_shared_access_signature_is_sent_as_it_is(store: RealStore, mark: str) -> None:
    sas = f"{mark}{azure_sas('models')}"
    for secret in ({"sasToken": sas}, {"connectionString": f"SharedAccessSignature={sas}"}):
        given = {key: value.encode() for key, value in secret.items()}
        _, data = await resolved(opened("azureBlob", store.spec(), given))
        assert data == DATA


async def test_a_connection_string_is_good_for_its_credentials_alone(store: RealStore) -> None:
    text = (
        f"DefaultEndpointsProtocol=https;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        "BlobEndpoint=http://169.254.169.254/;EndpointSuffix=core.windows.net"
    )
    _, data = await resolved(
        opened("azureBlob", store.spec(), {"AZURE_STORAGE_CONNECTION_STRING": text.encode()})
    )
    assert data == DATA


async def test_the_command_connects_where_the_persons_own_connection_string_says(
    azure: str, store: RealStore
) -> None:
    text = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint={azure};"
    environ = {"AZURE_STORAGE_CONNECTION_STRING": text}
    source = open_address(f"{store.root}/{PREFIX}/", environ)
    found, data = await resolved(source)
    assert data == DATA
    assert found.uri == f"{store.root}/{PREFIX}"


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
    store: RealStore, secret: dict[str, bytes] | None, message: str
) -> None:
    text = await refused(opened("azureBlob", store.spec(), secret), AccessDenied)
    assert f"from az://{AZURE_ACCOUNT}/models/{PREFIX}: {message}" in text


async def test_a_token_is_a_header_with_the_interfaces_version() -> None:
    files = {f"/models/x/{name}": content for name, content in FILES.items()}
    async with LyingServer(files=files).running() as server:
        token = {"token": b"canary-token"}
        _, data = await resolved(opened("azureBlob", spec(server.url), token))
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
        text = await refused(opened("azureBlob", spec(server.url)), error)
    assert message in text


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ({"password": b"canary"}, "lacks key accountKey or sasToken or connectionString or token"),
        ({"accountKey": b"canary!"}, "key accountKey holds no account key in base64"),
        ({"sasToken": b"canary"}, "key sasToken is not a shared access signature"),
        ({"sasToken": b"sig=canary x"}, "key sasToken is not a shared access signature"),
        ({"connectionString": b"AccountName=other;AccountKey=canary"}, "is for another account"),
        ({"connectionString": b"canary"}, "holds no AccountKey and no SharedAccessSignature"),
        ({"connectionString": b"AccountKey=canary!"}, "holds no account key in base64"),
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
