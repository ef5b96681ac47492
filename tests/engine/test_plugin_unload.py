"""How long an unload waits for a request that may be on its way: since the revision was last looked up."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_vllm import control
from lorafleet_vllm.loaded import Loaded
from lorafleet_vllm.served_names import ServedNames
from lorafleet_vllm.settings import RevisionPath, Volume

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine
HEX = "ab" * 32
LONG = 3600.0


class Server:
    """A control with one loaded revision, number 7, whose name has moved on."""

    def __init__(self, root: Path) -> None:
        self.removed: list[int] = []
        volume = Volume(root)
        path = volume.lora_path(RevisionPath(HEX, "direct"))
        request = SimpleNamespace(lora_int_id=7, lora_name=f"t/a@{HEX}/direct", lora_path=path)
        self.names = ServedNames(volume, {"t/a": request})
        config = SimpleNamespace(lora_config=object(), parallel_config=SimpleNamespace())
        engine: Any = SimpleNamespace(vllm_config=config, remove_lora=self.remove)
        engine.output_processor = SimpleNamespace(request_states={})
        models = SimpleNamespace(engine_client=engine, lora_requests=self.names)
        self.control = control.Control(volume, models, "ok")
        self.loaded = Loaded("t/a", f"sha256:{HEX}", "direct", request)
        self.control._loaded[7] = self.loaded
        self.names.add(self.loaded)

    async def remove(self, lora_int_id: int) -> None:
        self.removed.append(lora_int_id)

    async def ask(self) -> None:
        """Look the name up as a request does that is over at once, and move it on."""
        await asyncio.create_task(self._look_up())
        del self.names["t/a"]

    async def _look_up(self) -> None:
        self.names["t/a"]


async def test_one_that_nobody_has_looked_up_lately_is_unloaded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    await server.ask()
    monkeypatch.setattr(control, "_GRACE_SECONDS", LONG)
    server.names._used_at[7] = time.monotonic() - LONG
    await asyncio.wait_for(server.control.unload(7), 60)
    assert server.removed == [7]


async def test_one_that_was_just_looked_up_waits_and_is_not_found_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    await server.ask()
    monkeypatch.setattr(control, "_GRACE_SECONDS", LONG)
    unloading = asyncio.create_task(server.control.unload(7))
    while not server.loaded.closed:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not unloading.done()
    assert server.removed == []
    unloading.cancel()
    await asyncio.gather(unloading, return_exceptions=True)
    assert not server.loaded.closed, "it stays, and can be asked for again"
