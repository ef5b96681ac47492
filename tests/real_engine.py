"""A vLLM process group beside a real sidecar, in place of the rig's fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from processes import free_port
from staging_builders import SourceAdapter
from tiny_models import dense_modules, make_adapter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sidecar_rig import Rig

BASE = "tiny/qwen3-dense"


class RealEngine:
    """vLLM as a process group, with the face of the fake one."""

    def __init__(self, volume: Path, model: Path, log: Path, **environ: str) -> None:
        self._volume, self._model, self._log, self._port = volume, model, log, free_port()
        self._environ = environ
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> RealEngine:
        """Start it; it answers a minute later."""
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", BASE]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--enforce-eager"]
        command += ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "3"]
        command += ["--max-lora-rank", "8", "--max-model-len", "1024"]
        environ = {
            **os.environ,
            "LORAFLEET_VOLUME": str(self._volume),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self._environ,
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        return self

    async def kill(self) -> None:
        """Kill the whole engine, as the kernel kills a container."""
        os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)

    def release(self) -> None:
        """Nothing is held here."""


async def until(rig: Rig, condition: Callable[[pb.Inventory], Any], seconds: float = 240) -> None:
    """Wait until the inventory satisfies `condition`."""
    stream = rig.stub.WatchEngine(pb.WatchEngineRequest())
    async with asyncio.timeout(seconds):
        while not condition((await stream.read()).inventory):
            pass
    stream.cancel()


def source(folder: Path, name: str, seed: int) -> SourceAdapter:
    make_adapter(folder, dense_modules(), seed=seed, base_model_name_or_path=BASE)
    content = (folder / "adapter_model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    config = (folder / "adapter_config.json").read_bytes()
    return SourceAdapter(name, f"test:{folder.name}", content[8:end], content[end:], config)


async def answer(rig: Rig, model: str, tokens: int = 8) -> str:
    async with httpx.AsyncClient(base_url=rig.engine.url, trust_env=False) as client:
        body = {"model": model, "prompt": "t1 t2 t3 t4", "max_tokens": tokens, "temperature": 0.0}
        response = await client.post("/v1/completions", json=body, timeout=120)
        response.raise_for_status()
        return str(response.json()["choices"][0]["text"])
