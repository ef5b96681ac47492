"""First requests on a real vLLM that nobody allowed to load adapters by its own API."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httpx
import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from real_engine import BASE, RealEngine, answer, source, until
from sidecar_rig import Rig
from staging_client import stage
from tiny_models import make_dense

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


async def ask(rig: Rig, model: str, path: str = "completions") -> tuple[int, str]:
    """Return status, and text or line, of one request."""
    async with httpx.AsyncClient(base_url=rig.engine.url, trust_env=False) as client:
        body = {"model": model, "max_tokens": 8, "temperature": 0.0}
        prompt = {"prompt": "t1 t2 t3 t4"}
        if path != "completions":
            prompt = {"messages": [{"role": "user", "content": "t1"}]}  # type: ignore[dict-item]
        response = await client.post(f"/v1/{path}", json={**body, **prompt}, timeout=120)
    content = response.json()
    if response.is_success:
        return 200, str(content["choices"][0].get("text"))
    return response.status_code, str(content["error"]["message"])


async def test_first_requests_on_a_real_engine(volume: Path, tmp_path: Path) -> None:
    model = make_dense(tmp_path / "model")
    rig = Rig(volume, refresh_seconds=0.5, drain_timeout_seconds=60)
    environ = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0", "LORAFLEET_FIRST_REQUEST_SECONDS": "20"}
    rig.engine = RealEngine(volume, model, tmp_path / "vllm.log", **environ)  # type: ignore[assignment]
    async with rig:
        await until(rig, lambda inventory: inventory.health == pb.ENGINE_HEALTH_READY)
        sql, _ = await stage(rig.channel, source(tmp_path / "one", "team-a/sql", 1))
        chat, _ = await stage(rig.channel, source(tmp_path / "two", "team-b/chat", 2))
        await rig.load(chat.digest, "team-b/chat")
        async with httpx.AsyncClient(base_url=rig.engine.url, trust_env=False) as client:
            loading = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters")
            found = [(await client.post(path, json={})).status_code for path in loading]
            assert found == [404] * 3, "vLLM has none of its own without the variable"
        base, other = await answer(rig, BASE), await answer(rig, "team-b/chat")
        assert base != other

        # Twenty requests at once for what is staged only: one load, each gets the adapter's tokens.
        await rig.load(sql.digest, residency="onDemand")
        assert [
            a.tier for a in (await rig.inventory()).loaded if a.served_name == "team-a/sql"
        ] == [pb.TIER_STAGED]
        before = sum(w.loads for w in (await rig.inventory()).workers)
        answers = await asyncio.gather(*(ask(rig, "team-a/sql") for _ in range(20)))
        assert {status for status, _ in answers} == {200}
        (text,) = {text for _, text in answers}
        assert text not in (base, other)
        assert sum(w.loads for w in (await rig.inventory()).workers) == before + 1
        await rig.load(sql.digest)  # the same content, kept loaded: the same tokens
        assert await answer(rig, "team-a/sql") == text

        # Nobody is connected who could know more: not found, not waited for until the deadline.
        for path in ("completions", "chat/completions"):
            status, line = await ask(rig, "team-x/other", path)
            assert status == 404
            assert "team-x/other" in line

        # With an operator that says nothing, the deadline ends the wait, and others are served.
        stream = rig.stub.WatchEngine(pb.WatchEngineRequest())
        await stream.read()
        waiting = asyncio.create_task(ask(rig, "team-x/silent"))
        gone = asyncio.create_task(ask(rig, "team-x/gone"))
        await until(rig, lambda i: set(i.requested) == {"team-x/silent", "team-x/gone"})
        gone.cancel()
        await until(rig, lambda i: list(i.requested) == ["team-x/silent"])
        assert await answer(rig, "team-b/chat") == other
        assert not waiting.done()
        status, line = await waiting
        assert (status, line) == (
            503,
            "The model `team-x/silent` was not loaded within 20 s; try again.",
        )
        await until(rig, lambda i: not i.requested)

        # With one that knows the name of nobody, it is not found.
        waiting = asyncio.create_task(ask(rig, "team-x/refused"))
        await until(rig, lambda i: list(i.requested) == ["team-x/refused"])
        refused = pb.RefusedName(served_name="team-x/refused")
        await rig.stub.RefuseNames(pb.RefuseNamesRequest(names=[refused]))
        status, line = await waiting
        assert (status, line) == (404, "The model `team-x/refused` does not exist.")
        stream.cancel()
    log = (tmp_path / "vllm.log").read_text()
    assert not re.search(r"Traceback", log)
