"""Sidecar and vLLM are different users of one group, which the pod gives both: what each may do then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pod_processes import as_user, memory_volume
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIDECAR, ENGINE, GROUP = 65532, 2000, 65532
# What the plugin does in vLLM's API server: make the control socket, and again after a restart.
_ENGINE = """
import sys, uvicorn
from pathlib import Path
from lorafleet_vllm.control_server import listen
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"engine"})
for _ in range(2):
    listener = listen(Path(sys.argv[1]) / "run" / "engine.sock")
(Path(sys.argv[1]) / "run" / "listens").touch()
uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None)).run(sockets=[listener])
"""
# What the sidecar does to ask it.
_ASK = """
import sys, httpx
transport = httpx.HTTPTransport(uds=sys.argv[1] + "/run/engine.sock")
print(httpx.Client(transport=transport).get("http://engine/v1/handshake").status_code)
"""


@contextlib.contextmanager
def started(command: list[str], **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end."""
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "engine_sidecar:protos", **env}
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def appears(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "fs_group", [None, 2000], ids=["supplemental group", "group of the volume"]
)
async def test_the_control_socket_is_shared_and_the_rest_is_the_sidecars(
    volume: Path, fs_group: int | None
) -> None:
    memory_volume(volume, fs_group)
    groups = [GROUP] if fs_group is None else [GROUP, fs_group]
    serve = as_user([sys.executable, "-m", "lorafleet_sidecar", "serve"], SIDECAR, GROUP, groups)
    environ = {
        "LORAFLEET_VOLUME": str(volume),
        "LORAFLEET_ARENA_BYTES": "4Mi",
        "LORAFLEET_LISTEN": f"127.0.0.1:{free_port()}",
        "LORAFLEET_METRICS_LISTEN": "",
    }
    with started(serve, **environ):
        await appears(volume / "plugin")
        engine = as_user([sys.executable, "-c", _ENGINE, str(volume)], ENGINE, ENGINE, groups)
        with started(engine):
            await appears(volume / "run" / "listens")
            assert _ask(volume, SIDECAR, groups) == "418"
            if os.geteuid() == 0:
                assert _ask(volume, 3000, []) == "", "others do not reach it"
            made = (volume / "run" / "engine.sock").stat()
            assert made.st_mode & 0o777 == 0o660
    if os.geteuid() == 0:
        assert made.st_uid == ENGINE
        assert made.st_gid == (fs_group or GROUP)
        arena = (volume / "arena").stat()
        assert (arena.st_uid, arena.st_mode & 0o777) == (SIDECAR, 0o664)


def _ask(volume: Path, user: int, groups: list[int]) -> str:
    command = as_user([sys.executable, "-c", _ASK, str(volume)], user, user, groups)
    environ = {"PATH": "/usr/bin:/bin"}
    asked = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert asked.stdout or "PermissionError" in asked.stderr or "Permission denied" in asked.stderr
    return asked.stdout.strip()
