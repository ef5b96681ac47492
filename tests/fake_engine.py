"""A small real engine: the plugin's control socket and vLLM's HTTP API over a made-up model.

It keeps vLLM's rules that matter to the sidecar: LoRA ids, slots, the `max_cpu_loras` LRU,
requests in flight on the revision that they started on, refusals with vLLM's texts, and a new
instance with each start. A completion's text is the first 12 digits of the revision's digest
(or "base"), so a test sees which revision answered.

`fake_engine_process.py` runs one as a process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from fake_engine_books import MEMORY, Behaviour, Revision
from fake_http import Answer, Body, Refused, serve_requests
from fake_metrics import metrics_page
from fake_names import Names
from lorafleet_vllm.first_requests import Absent, FirstRequests

BASE = "tiny/qwen3-dense"


class FakeEngine:
    """One engine; `start` and `kill` may alternate."""

    def __init__(
        self,
        volume: Path,
        behaviour: Behaviour | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.volume = volume
        self.behaviour = behaviour or Behaviour()
        self.port = port
        self.host_address = host
        self.loads: list[tuple[str, str]] = []  # (served name, digest) over all instances
        self.behaviour.loads_go_on.set()
        self.behaviour.proofs_go_on.set()
        self.moves: list[tuple[str, str]] = []  # (served name, digest) that it came to mean
        self.ends: list[str] = []
        self.alive = False
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL of the HTTP API."""
        return f"http://{self.host_address}:{self.port}"

    @property
    def base(self) -> str:
        """The name of the base model."""
        return str(self.behaviour.profile.get("base_model", BASE))

    async def start(self) -> FakeEngine:
        """Start a new instance that knows nothing of the one before."""
        self.alive = True
        self.instance = secrets.token_hex(8)
        self.started = time.time()
        self.revisions: dict[int, Revision] = {}
        self.served: dict[str, int] = {}
        self.stock: dict[str, Revision] = {}
        self._names = Names(self.revisions, self.served, self.stock)
        self.host: OrderedDict[int, None] = OrderedDict()
        self.gpu: OrderedDict[int, None] = OrderedDict()
        self.counts = {"loads": 0, "evictions": 0, "rebuilds": 0, "offloads": 0}
        self._next_id = 1
        self.first_requests = FirstRequests(self.behaviour.first_request_seconds)
        self._release = object()
        http = await asyncio.start_server(self._serve_http, self.host_address, self.port)
        self.port = http.sockets[0].getsockname()[1]
        self._servers = [http]
        if self.behaviour.plugin:
            socket = self.volume / "run" / "engine.sock"
            socket.parent.mkdir(parents=True, exist_ok=True)
            socket.unlink(missing_ok=True)
            self._servers.append(await asyncio.start_unix_server(self._serve_socket, socket))
        return self

    async def kill(self) -> None:
        """End as a killed process does: every connection breaks, the socket file stays."""
        self.alive = False
        for server in self._servers:
            server.close()
        for task in tuple(self._connections):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)

    def release(self) -> None:
        """Let every held request end."""
        self._release = object()

    # Connections.

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, self._http)

    async def _serve_socket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._serve(reader, writer, self._control)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Answer
    ) -> None:
        async def answer(method: str, path: str, body: Body, headers: dict[str, str]) -> Any:
            if self.behaviour.die_at == ("before", path):
                await self._die()
            content = await handler(method, path, body, headers)
            if self.behaviour.die_at == ("after", path):
                await self._die()
            return content

        if not self.alive:
            writer.close()  # it was accepted as the engine died
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await serve_requests(reader, writer, answer)
        finally:
            self._connections.discard(task)

    async def _die(self) -> None:
        await self.kill()
        raise asyncio.CancelledError

    # The plugin's control socket.

    async def _control(
        self, method: str, path: str, body: dict[str, Any], _headers: dict[str, str]
    ) -> Any:
        behaviour = self.behaviour
        match method, path:
            case "GET", "/v1/handshake":
                return {
                    "instance": self.instance,
                    "pid": os.getpid(),
                    "plugin_version": "0.1.0",
                    "vllm_version": "0.32.0",
                    "compat": behaviour.compat,
                    "lora_enabled": behaviour.lora_enabled,
                    "base_models": [self.base],
                    "api_servers": behaviour.api_servers,
                }
            case "GET", "/v1/profile":
                return {
                    "base_model": BASE,
                    "dtype": "bfloat16",
                    "max_lora_rank": 8,
                    "max_loras": behaviour.max_loras,
                    "max_cpu_loras": behaviour.max_cpu_loras,
                    "vllm_version": "0.32.0",
                    "modules": [],
                    **behaviour.profile,
                }
            case "GET", "/v1/state":
                return self._state()
            case "POST", "/v1/load":
                lora_int_id = await self._load(**body)
                self.revisions[lora_int_id].closed = False
                self.revisions[lora_int_id].aborted = False
                return {"lora_int_id": lora_int_id, "seconds": 0.001}
            case "POST", "/v1/verify":
                return await self._verify(body["lora_int_id"])
            case "POST", "/v1/publish":
                previous = self.served.get(body["served_name"])
                if body["lora_int_id"] not in self.revisions:
                    raise Refused(404, {"error": f"no lora_int_id {body['lora_int_id']}"})
                self.served[body["served_name"]] = number = body["lora_int_id"]
                self.moves.append((body["served_name"], self.revisions[number].digest))
                self.revisions[number].closed = False
                self.first_requests.answer(body["served_name"], None)
                return {"previous": previous}
            case "POST", "/v1/unpublish":
                return {"previous": self._names.hide(body["served_name"])}
            case "POST", "/v1/keep":
                self.revisions[body["lora_int_id"]].residency = body["residency"]
                return {}
            case "POST", "/v1/wanted":
                return await self.first_requests.wanted(body["seen"])
            case "POST", "/v1/refuse":
                absent = Absent(body["status"], body["message"])
                self.first_requests.answer(body["served_name"], absent)
                return {}
            case "POST", "/v1/shutdown":
                running = sum(each.in_flight for each in self.revisions.values())
                if running and not body["force"]:
                    raise Refused(409, {"error": f"{running} requests are running"})
                self.ends.append(body["instance"])  # tests carry it out
                return {"ending": True}
            case "POST", "/v1/unload":
                return self._unload(body["lora_int_id"])
            case "POST", "/v1/abort":
                return self._abort(body["lora_int_id"])
        raise Refused(404, {"error": f"no {method} {path}"})

    async def _load(self, served_name: str, digest: str, loader: str) -> int:
        folder = self.volume / "revisions" / digest.removeprefix("sha256:")
        path = str(folder / loader)
        for each in self.revisions.values():
            if (each.served_name, each.path) == (served_name, path):
                return each.lora_int_id
        await self._before_load(served_name, digest)
        if not (folder / "revision.json").is_file():
            raise Refused(404, {"error": f"no revision at {folder}"})
        revision = Revision(self._next_id, served_name, digest, path)
        self._next_id += 1
        self.revisions[revision.lora_int_id] = revision
        self.counts["loads"] += 1
        self._activate(revision.lora_int_id)
        return revision.lora_int_id

    async def _verify(self, lora_int_id: int) -> dict[str, Any]:
        await self.behaviour.proofs_go_on.wait()
        revision = self.revisions.get(lora_int_id)
        if revision is None:
            raise Refused(404, {"error": f"no adapter {lora_int_id} is loaded"})
        line = self.behaviour.wrong.get(revision.digest)
        if line is not None:
            raise Refused(409, {"error": line})
        revision.verified = True
        return {"verified": True, "modules": 1, "seconds": 0.001}

    async def _before_load(self, served_name: str, digest: str) -> None:
        self.loads.append((served_name, digest))
        await self.behaviour.loads_go_on.wait()
        if digest in self.behaviour.deadly:
            await self._die()
        refusal = self.behaviour.refuse.get(digest, self.behaviour.refuse.get("*"))
        if refusal is not None:
            raise Refused(500, {"error": refusal})

    def _activate(self, lora_int_id: int) -> None:
        self.host[lora_int_id] = None
        self.host.move_to_end(lora_int_id)
        self.gpu[lora_int_id] = None
        self.gpu.move_to_end(lora_int_id)
        while len(self.gpu) > self.behaviour.max_loras:
            self.gpu.popitem(last=False)
        evictable = [i for i in self.host if not self._kept(i) and i != lora_int_id]
        while len(self.host) > self.behaviour.max_cpu_loras and evictable:
            victim = evictable.pop(0)
            del self.host[victim]
            self.gpu.pop(victim, None)
            self.counts["evictions"] += 1

    def _kept(self, lora_int_id: int) -> bool:
        revision = self.revisions[lora_int_id]
        return revision.residency in ("gpu", "host") or revision.in_flight > 0

    def _unload(self, lora_int_id: int) -> dict[str, Any]:
        revision = self.revisions.get(lora_int_id)
        if revision is None:
            return {}
        if lora_int_id in self.served.values() or revision.in_flight:
            raise Refused(409, {"error": f"lora_int_id {lora_int_id} is published or in flight"})
        del self.revisions[lora_int_id]
        self.host.pop(lora_int_id, None)
        self.gpu.pop(lora_int_id, None)
        return {}

    def _abort(self, lora_int_id: int) -> dict[str, Any]:
        revision = self.revisions.get(lora_int_id)
        if revision is None:
            return {"aborted": 0}
        if lora_int_id in self.served.values():
            raise Refused(409, {"error": f"lora_int_id {lora_int_id} is published"})
        revision.aborted = revision.closed = True
        return {"aborted": revision.in_flight}

    def _state(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "served": self.served,
            "revisions": {str(key): each.state() for key, each in self.revisions.items()},
            "workers": [
                {
                    "rank": rank,
                    "gpu": list(self.gpu),
                    "host": list(self.host),
                    **MEMORY,
                    **self.counts,
                }
                for rank in range(self.behaviour.workers)
            ],
            "first_requests": self.first_requests.figures(),
        }

    # vLLM's own API.

    async def _http(
        self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        behaviour = self.behaviour
        guarded = path.startswith("/v1") and behaviour.api_key
        if guarded and headers.get("authorization") != f"Bearer {behaviour.api_key}":
            raise Refused(401, {"error": "Unauthorized"})
        if path.endswith("load_lora_adapter") and not behaviour.runtime_updates:
            raise Refused(404, {"detail": "Not Found"})
        match method, path:
            case "GET", "/health":
                return ""
            case "GET", "/metrics":
                return self._metrics()
            case "GET", "/v1/models":
                return {"data": self._names.cards(self.base, self.behaviour.unlisted)}
            case "POST", "/v1/completions":
                return await self._complete(body, ours="x-lorafleet-probe" in headers)
            case "POST", "/v1/load_lora_adapter":
                await self._stock_load(body["lora_name"], body["lora_path"])
                return "Success"
            case "POST", "/v1/unload_lora_adapter":
                if self.stock.pop(body["lora_name"], None) is None:
                    raise Refused(
                        404, {"error": {"message": f"LoRA adapter {body['lora_name']} not found"}}
                    )
                return "Success"
            case "POST", "/test/release":
                self.release()
                return {}
            case "POST", "/test/failing":
                behaviour.failing.add(body["digest"])
                return {}
            case "GET", "/test/loads" | "/test/moves":
                return self.loads if path == "/test/loads" else self.moves
        raise Refused(405 if path == "/v1/load_lora_adapter" else 404, {"detail": "Not Found"})

    def _metrics(self) -> str:
        busy = [each.served_name for each in self.stock.values() if each.in_flight]
        behaviour = self.behaviour
        return metrics_page(self.started, busy, behaviour.max_loras, lora=behaviour.lora_enabled)

    async def _complete(self, body: dict[str, Any], *, ours: bool) -> dict[str, Any]:
        model = body["model"]
        if model == self.base:
            return {"choices": [{"text": "base"}]}
        revision = await self._named(model)
        if revision.lora_int_id in self.revisions:
            if revision.lora_int_id not in self.host:
                self.counts["rebuilds"] += 1
            self._activate(revision.lora_int_id)
        if revision.digest in self.behaviour.mute:
            raise Refused(500, {"error": {"message": "EngineCore encountered an issue"}})
        revision.requests += not ours
        if revision.digest in self.behaviour.failing and not ours:
            revision.errors += 1
            raise Refused(500, {"error": {"message": "this request failed"}})
        revision.in_flight += 1
        revision.used_at = time.monotonic()
        try:
            held = self._release
            while body.get("hold") and held is self._release and not revision.aborted:
                await asyncio.sleep(0.005)
        finally:
            revision.in_flight -= 1
        if revision.aborted:
            return {"choices": [{"text": "", "finish_reason": "abort"}]}
        return {"choices": [{"text": revision.digest[7:19]}]}

    async def _named(self, model: str) -> Revision:
        """Return what answers to `model`, brought by the sidecar if need be, as the plugin does."""
        found, absent = self._names.find(model), None
        if found is None and self.behaviour.plugin and self._names.waits(model):
            absent = await self.first_requests.bring(self._names.plain(model))
            found = self._names.find(model)
        if found is not None:
            return found
        absent = absent or self._names.absent(model)
        raise Refused(absent.status, {"error": {"message": absent.line}})

    async def _stock_load(self, name: str, path: str) -> None:
        digest = "sha256:" + Path(path).name
        if name in self.stock:
            message = f"The lora adapter '{name}' has already been loaded."
            raise Refused(400, {"error": {"message": message}})
        if not self.behaviour.lora_enabled:
            message = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora"
            raise Refused(500, {"error": {"message": message}})
        try:
            await self._before_load(name, digest)
        except Refused as error:
            raise Refused(500, {"error": {"message": error.body["error"]}}) from None
        if not (Path(path) / "adapter_model.safetensors").is_file():
            raise Refused(404, {"error": {"message": f"No adapter found for {path}"}})
        self.stock[name] = Revision(self._next_id, name, digest, path)
        self._next_id += 1
