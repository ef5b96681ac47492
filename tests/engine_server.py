"""A vLLM API server as a child process, its OpenAI API and the plugin's control socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
from arena_builder import ArenaBuilder
from processes import free_port

if TYPE_CHECKING:
    from pathlib import Path

_START_SECONDS = 240
SERVED = "tiny/dense"


class EngineServer:
    """`with EngineServer(..) as server:` starts vLLM and waits until it is healthy."""

    def __init__(
        self,
        model: Path,
        volume: Path,
        limits: dict[str, int],
        environment: dict[str, str],
        *,
        extra: tuple[str, ...] = (),
    ) -> None:
        self.volume = volume
        self.arena = ArenaBuilder(volume)
        self.log = volume / "server.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", SERVED),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--enable-lora", "--enforce-eager", "--dtype", "bfloat16"),
            *flags,
            *extra,
        ]
        self._environment = {
            **os.environ,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            **environment,
        }
        self.api = httpx.Client(base_url=self.url, timeout=120)
        self.control = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(volume / "run" / "engine.sock")),
            base_url="http://engine",
            timeout=120,
        )

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended at its start:\n{self.log.read_text()[-4000:]}")
            try:
                if self.api.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.3)
        raise TimeoutError(f"vLLM is not up:\n{self.log.read_text()[-4000:]}")

    def _stop(self) -> None:
        self.api.close()
        self.control.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, call: str, **body: Any) -> dict[str, Any]:
        """POST to the control socket; the answer must be 200."""
        answer = self.control.post(f"/v1/{call}", json=body)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    def read(self, name: str) -> dict[str, Any]:
        """GET from the control socket; the answer must be 200."""
        answer = self.control.get(f"/v1/{name}")
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    def serve(self, name: str, digest: str, loader: str = "direct") -> int:
        """Load a staged revision and publish it under `name`; returns its id."""
        lora_int_id: int = self.ask("load", served_name=name, digest=digest, loader=loader)[
            "lora_int_id"
        ]
        self.ask("publish", served_name=name, lora_int_id=lora_int_id)
        return lora_int_id

    def complete(self, model: str, prompt: list[int], **options: Any) -> str:
        """Return the greedy completion of `prompt`."""
        body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, **options}
        answer = self.api.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def load_stock(self, name: str, path: Path) -> None:
        """Load an adapter through vLLM's own API."""
        answer = self.api.post(
            "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}
        )
        assert answer.status_code == 200, answer.text
