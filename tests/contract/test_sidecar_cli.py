"""The command line, run as people run it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING

from certificates import Authority
from fake_engine import FakeEngine
from sidecar_rig import ARENA_BYTES, Rig

if TYPE_CHECKING:
    from pathlib import Path


async def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lorafleet_sidecar", *arguments, env={"PATH": "", **environ},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_inspect_tells_what_a_volume_holds(volume: Path) -> None:
    async with Rig(volume) as rig:
        one, two = rig.put(1), rig.put(2)
        await rig.load(one, pinned=True)
        await rig.load(two, publish=False, pinned=True)
    before = (volume / "index.json").read_bytes()
    status, out, err = await run("inspect", str(volume))
    assert (status, err) == (0, "")
    assert "arena: 4 MiB of 64 MiB taken" in out
    assert f"revision {one} of team-a/sql: rank 8, 2 MiB at 0" in out
    assert (
        f"served name team-a/sql of team-a/sql: {one} (direct) prepared {two} (direct) pinned"
    ) in out
    assert (volume / "index.json").read_bytes() == before


async def test_inspect_of_something_else_is_one_line(volume: Path) -> None:
    status, out, err = await run("inspect", str(volume))
    assert (status, out) == (1, "")
    assert err.startswith("lorafleet-sidecar: ")
    assert err.count("\n") == 1


async def test_profile_prints_what_the_engine_can_take(volume: Path) -> None:
    engine = await FakeEngine(volume).start()
    environ = {
        "LORAFLEET_VOLUME": str(volume),
        "LORAFLEET_ARENA_BYTES": str(ARENA_BYTES),
        "LORAFLEET_ENGINE_URL": engine.url,
    }
    status, out, _ = await run("profile", "-o", "json", **environ)
    assert status == 0
    assert json.loads(out)["max_cpu_loras"] == 3
    await engine.kill()
    status, out, err = await run("profile", **environ)
    assert (status, out) == (1, "")
    assert err == "lorafleet-sidecar: engine does not answer /health yet\n"


async def test_a_missing_setting_is_named(volume: Path) -> None:
    status, _, err = await run("serve", LORAFLEET_VOLUME=str(volume))
    assert (status, err) == (2, "lorafleet-sidecar: LORAFLEET_ARENA_BYTES is not set\n")


async def test_an_address_that_is_taken_is_one_line(volume: Path) -> None:
    async with Rig(volume) as rig:
        other = volume / "other"
        other.mkdir()
        status, _, err = await run(
            "serve",
            LORAFLEET_VOLUME=str(other),
            LORAFLEET_ARENA_BYTES=str(4 << 20),
            LORAFLEET_LISTEN=f"127.0.0.1:{rig.sidecar.port}",
        )
    assert status == 1
    assert f"lorafleet-sidecar: cannot listen on 127.0.0.1:{rig.sidecar.port}" in err


async def test_an_address_of_the_metrics_that_is_taken_is_one_line(volume: Path) -> None:
    """The gRPC server is up by then and is ended with the rest."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, err = await run(
            "serve",
            LORAFLEET_VOLUME=str(volume),
            LORAFLEET_ARENA_BYTES=str(4 << 20),
            LORAFLEET_LISTEN="127.0.0.1:0",
            LORAFLEET_METRICS_LISTEN=address,
        )
    assert status == 1
    assert f"lorafleet-sidecar: cannot listen on {address}: " in err
    assert "Traceback" not in err


async def test_certificates_that_cannot_be_used_end_a_start_with_one_line(volume: Path) -> None:
    """Of both programs, before they touch anything else."""
    folder = volume / "tls"
    line = f"LORAFLEET_TLS_DIR='{folder}': No such file or directory: {folder / 'ca.crt'}\n"
    settings = {"LORAFLEET_VOLUME": str(volume), "LORAFLEET_ARENA_BYTES": str(4 << 20)}
    tls = {"LORAFLEET_TLS_DIR": str(folder)}
    assert await run("serve", **settings, **tls) == (2, "", f"lorafleet-sidecar: {line}")
    assert not (volume / "arena").exists()
    Authority("fleet").write(folder, "sidecar")
    (folder / "tls.key").write_bytes(Authority("fleet").issue("x")[0])
    line = f"LORAFLEET_TLS_DIR='{folder}': tls.key is not the key of tls.crt\n"
    assert await run("serve", **settings, **tls) == (2, "", f"lorafleet-sidecar: {line}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lorafleet_operator", "run", env={"PATH": "", **tls},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert (process.returncode, out, err.decode()) == (2, b"", f"lorafleet-operator: {line}")
