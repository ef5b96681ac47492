"""`lorafleet inspect URI` as a process of its own against real servers, with secrets to be kept."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pytest
from format_cases import CASES, EXPECTED, HERE
from inspection_command import Result, same_numbers
from obstore.store import S3Store
from servers import LyingServer, S3Server, start_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = Path(sys.executable).with_name("lorafleet")
CASE = "m04-fused-peft-0-19"
MOE = str(HERE / "profiles" / "qwen3-moe.json")
COMMIT = "a" * 40
CANARY = "canary"


def files(prefix: str) -> dict[str, bytes]:
    return {f"{prefix}/{path.name}": path.read_bytes() for path in (CASES / CASE).iterdir()}


async def inspect(address: str, *arguments: str, **environ: str) -> Result:
    """Run the command beside the servers of this process; no secret may come out of it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "inspect",
        address,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=kept | environ,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    result = Result(process.returncode, out.decode(), err.decode())
    assert CANARY not in result.out + result.err
    return result


def loads(result: Result) -> None:
    assert (result.status, result.err) == (0, "")
    same_numbers(result.json["modules"], EXPECTED[CASE][""])


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_web_server_named_by_the_person_is_read(ranges: bool) -> None:
    async with LyingServer(
        files=files("/sql"), ranges=ranges, drop_after=5000, drops=2
    ).running() as server:
        address = f"{server.url}/sql?sig={CANARY}"
        loads(await inspect(address, "--profile", MOE, "-o", "json"))
        text = await inspect(address, "--profile", MOE)
        assert text.out.startswith(f"adapter   {server.url}/sql\n")
        assert all(f"sig={CANARY}" in request.path for request in server.requests)


async def test_what_a_web_server_lacks_is_one_line() -> None:
    async with LyingServer().running() as server:
        result = await inspect(f"{server.url}/sql", "-o", "json")
        assert (result.status, result.json["reason"]) == (1, "SourceNotFound")
    result = await inspect(f"{server.url}/sql", "-o", "json")
    assert (result.status, result.json["reason"]) == (1, "SourceUnavailable")


async def test_a_hub_is_read_at_a_commit_with_the_persons_token() -> None:
    hub = LyingServer(files=files(f"/org/sql/resolve/{COMMIT}"), etag="content")
    hub.files["/api/models/org/sql/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    async with hub.running() as server:
        environ = {"HF_ENDPOINT": server.url, "HF_TOKEN": CANARY}
        loads(await inspect("hf://org/sql", "--profile", MOE, "-o", "json", **environ))
        sent = {request.headers.get("authorization") for request in server.requests}
        assert sent == {f"Bearer {CANARY}"}
        server.status = 401
        refused = await inspect("hf://org/sql", "-o", "json", **environ)
        assert refused.json["reason"] == "AccessDenied"
        assert "the environment key HF_TOKEN was sent" in refused.json["error"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with start_s3(tmp_path_factory.mktemp("s3")) as server:
        (server.root / "models").mkdir()
        store = S3Store(
            "models",
            endpoint=server.endpoint,
            region="us-east-1",
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
            client_options={"allow_http": True},
        )
        for name, content in files("team/sql").items():
            obstore.put(store, name, content)
        yield server


async def test_a_bucket_is_read_with_the_keys_of_the_environment(s3: S3Server) -> None:
    assert CANARY in s3.secret_key
    environ = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
    }
    address = "s3://models/team/sql"
    loads(await inspect(address, "--profile", MOE, "-o", "json", **environ))
    wrong = {**environ, "AWS_SECRET_ACCESS_KEY": f"{CANARY}-wrong"}
    refused = await inspect(address, "-o", "json", **wrong)
    assert refused.json["reason"] == "AccessDenied"
    assert refused.json["error"].endswith("the credentials of the environment were refused")
    anonymous = await inspect(address, "-o", "json", AWS_ENDPOINT_URL=s3.endpoint)
    assert anonymous.json["error"].endswith("no credentials configured")
