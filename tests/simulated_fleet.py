"""A fleet without models for one operator: simulated engines in this process, their pods and a pool
as real objects, tiny adapters on a volume, and a watch that knows when each adapter became Ready.

    async with SimulatedFleet(kubeconfig, directory, "fleet", engines=30) as fleet:
        ... start the operator: LORAFLEET_NAMESPACES, LORAFLEET_VOLUME_ROOT=fleet.root ...
        await asyncio.gather(*(fleet.apply(f"a-{n}") for n in range(100)))
        await fleet.settled(60)

Each engine has an address of its own in 127/8, so that the pool's one port does for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import ssl
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from kubernetes import config
from simulated_engine import Behaviour, Books, SimulatedEngine, profile_of
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

BASE = "tiny/simulated"
PORT = 7070
GROUP = "/apis/lorafleet.dev/v1alpha1/namespaces"
POOL = "pool"
_MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
_CONFIG = json.dumps(
    {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE,
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
).encode()
_HEADER = json.dumps(
    {
        f"{_MODULE}.lora_A.weight": {"dtype": "BF16", "shape": [2, 16], "data_offsets": [0, 64]},
        f"{_MODULE}.lora_B.weight": {"dtype": "BF16", "shape": [16, 2], "data_offsets": [64, 128]},
    }
).encode()


@dataclass
class Applied:
    """An adapter as it was last written, and what the watch has told of it since."""

    revision: int
    digest: str
    generation: int = 0
    at: float = 0.0
    ready_at: float | None = None
    """When Ready was seen for this generation (the loop's clock)."""
    status: dict[str, Any] = field(default_factory=dict)


class SimulatedFleet:
    """The engines, the pods, the pool and the adapters of one namespace."""

    def __init__(
        self,
        kubeconfig: Path,
        directory: Path,
        namespace: str,
        *,
        engines: int,
        replicas: int = 3,
        behaviour: Behaviour | None = None,
        poll_seconds: int = 60,
    ) -> None:
        self.namespace = namespace
        self.poll_seconds = poll_seconds
        self.root = directory / "volumes"
        self.replicas = replicas
        self.behaviour = behaviour or Behaviour()
        self.books = Books()
        self.engines: dict[str, SimulatedEngine] = {}
        self.adapters: dict[str, Applied] = {}
        self.seconds: list[float] = []
        """From each apply to Ready, in the order of becoming Ready."""
        self._count = engines
        self._network = f"127.{random.randint(64, 250)}"
        self._subnet = random.randrange(200)  # the fleets of other processes have others
        self._kubeconfig = kubeconfig
        self._limit = asyncio.Semaphore(16)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        given = config.new_client_from_config(str(self._kubeconfig)).configuration
        context = ssl.create_default_context(cafile=given.ssl_ca_cert)
        headers = {each["key"]: each["value"] for each in given.auth_settings().values()}
        connector = aiohttp.TCPConnector(ssl=context)
        self._api = aiohttp.ClientSession(given.host, headers=headers, connector=connector)
        await self._ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        spec = {"selector": {"matchLabels": {"app": "simulated"}}, "baseModel": BASE}
        await self._ask("POST", self._path("enginepools"), _object("EnginePool", POOL, spec))
        await asyncio.gather(*(self.add_engine(f"engine-{n}") for n in range(self._count)))
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(engine.kill() for engine in self.engines.values()))
        await self._api.close()
        shutil.rmtree(self.root, ignore_errors=True)

    # Engines.

    async def add_engine(self, name: str) -> None:
        """Start an engine and make its pod, which is reported running as a kubelet would."""
        number = len(self.engines) + 1
        address = f"{self._network}.{self._subnet + number // 250}.{number % 250 + 1}"
        container = {"name": "vllm", "image": "local.invalid/simulated"}
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        labels = {"app": "simulated"}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}
        engine = SimulatedEngine(
            "", f"{address}:{PORT}", profile_of(BASE), self.behaviour, self.books
        )
        self.engines[name] = engine
        made = await self._ask("POST", pods, body)
        engine.pod_uid = made["metadata"]["uid"]
        await engine.start()
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        await self._ask(
            "PATCH", f"{pods}/{name}/status", {"status": {**status, "conditions": [ready]}}
        )

    async def lose_engines(self, names: list[str]) -> None:
        """Kill engines and delete their pods, all at once."""
        gone = [self.engines.pop(name) for name in names]
        await asyncio.gather(*(engine.kill() for engine in gone))
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        query = "gracePeriodSeconds=0"
        await asyncio.gather(*(self._ask("DELETE", f"{pods}/{name}?{query}") for name in names))

    # Adapters.

    async def apply(self, name: str, number: int = 1, digest: str = "", **more: Any) -> None:
        """Write the content of revision `number` and the adapter that names it, new or known.

        `digest`: what is to be served then, if another revision; `more`: further fields of the spec.
        """
        claim = {"claimName": "claim", "path": f"{name}/{number}"}
        spec = {
            "baseModel": BASE,
            "poolRef": {"name": POOL},
            "source": {"persistentVolumeClaim": claim, "pollIntervalSeconds": self.poll_seconds},
            "placement": {"policy": "Spread", "replicas": self.replicas},
            **more,
        }
        known = self.adapters.get(name)
        self.adapters[name] = applied = Applied(number, self._put_content(name, number))
        applied.digest = digest or applied.digest
        applied.at = asyncio.get_running_loop().time()
        if known is None:
            body = _object("LoRAAdapter", name, spec)
            while (answer := await self._ask("POST", self._path("loraadapters"), body))[
                "kind"
            ] == "Status":
                await asyncio.sleep(0.05)  # the one before of that name is still being deleted
        else:
            applied.status = known.status
            answer = await self._change(self._path("loraadapters", name), spec)
        applied.generation = answer["metadata"]["generation"]
        self._see(answer)

    async def delete(self, name: str) -> None:
        """Delete the adapter."""
        del self.adapters[name]
        await self._ask("DELETE", self._path("loraadapters", name))

    def _put_content(self, name: str, revision: int) -> str:
        """Write a content that no other adapter or revision has; return its digest in the engines."""
        data = hashlib.sha512(f"{name}/{revision}".encode()).digest() * 2
        folder = self.root / self.namespace / "claim" / name / str(revision)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_bytes(_CONFIG)
        weights = struct.pack("<Q", len(_HEADER)) + _HEADER + data
        (folder / "adapter_model.safetensors").write_bytes(weights)
        return "sha256:" + hashlib.sha256(_HEADER + _CONFIG + data).hexdigest()

    # What came of it.

    def unsettled(self) -> list[str]:
        """Return the adapters that are not Ready as they were last written, or not truly served."""
        waiting = [
            name
            for name, each in self.adapters.items()
            if each.ready_at is None or each.status.get("readyEngines") != self.replicas
        ]
        if waiting:  # what is served costs more to find out than that
            return waiting
        served = Counter(
            (entry.served_name, entry.digest)
            for engine in self.engines.values()
            for entry in engine.loaded.values()
            if entry.published
        )
        return [
            name
            for name, each in self.adapters.items()
            if served[f"{self.namespace}/{name}", each.digest] != self.replicas
        ]

    async def stir(self, rollout: dict[str, Any]) -> None:
        """Leave loads, updates, one by `rollout` and a deletion under way; a-0 to a-7 are served."""
        loads = self.books.loads
        for number in range(3):
            await self.apply(f"a-{number}", 2)
        await self.apply("a-3", 2, rollout=rollout)
        await self.delete("a-4")
        for number in range(8, 14):
            await self.apply(f"a-{number}")
        await until(lambda: self.books.loads > loads)

    def served(self) -> dict[str, set[str]]:
        """Return the names that each engine answers to."""
        return {
            name: {entry.served_name for entry in engine.loaded.values() if entry.published}
            for name, engine in self.engines.items()
        }

    def leftovers(self) -> list[str]:
        """Return what engines hold of adapters that are no more."""
        wanted = {f"{self.namespace}/{name}" for name in self.adapters}
        entries = [entry for engine in self.engines.values() for entry in engine.loaded.values()]
        return [entry.adapter for entry in entries if entry.adapter not in wanted]

    async def settled(self, seconds: float, poll: float = 0.1) -> float:
        """Return, when no adapter is unsettled, the seconds that took. Raises TimeoutError."""
        began = time.monotonic()
        while missing := self.unsettled():
            if self._watching is not None and self._watching.done():
                self._watching.result()  # why nobody is seen to become Ready any more
            if time.monotonic() - began > seconds:
                raise TimeoutError(
                    f"{len(missing)} are not served after {seconds} s: {missing[:5]}"
                )
            await asyncio.sleep(poll)
        return time.monotonic() - began

    async def writes(self) -> Counter[str]:
        """Return how many writes the API server has counted that only operators make, by kind."""
        found: Counter[str] = Counter()
        async with self._api.get("/metrics") as answer:
            async for raw in answer.content:
                line = raw.decode()
                if not line.startswith("apiserver_request_total{"):
                    continue
                labels = dict(
                    part.split("=", 1)
                    for part in line[24 : line.index("}")].split(",")
                    if "=" in part
                )
                values = {key: value.strip('"') for key, value in labels.items()}
                kind = (values["resource"], values["subresource"], values["verb"])
                if name := _OPERATORS.get(kind):
                    found[name] += int(float(line.rsplit(" ", 1)[1]))
        return found

    async def quiet(self) -> Counter[str]:
        """Return the writes once none follows for a second: Events come after a status."""
        before = None
        while before != (now := await self.writes()):
            before = now
            await asyncio.sleep(1.0)
        return now

    async def _watch(self) -> None:
        """Follow every adapter for ever."""
        place, since = self._path("loraadapters"), "0"
        while True:
            await asyncio.sleep(0.1)  # it may be away for long
            timeout = aiohttp.ClientTimeout(total=None)
            query = f"?watch=1&resourceVersion={since}"
            # A watch that falls behind, on a busy machine, is cut off: the next one goes on from there.
            with suppress(aiohttp.ClientError):
                async with self._api.get(
                    place + query, timeout=timeout, read_bufsize=1 << 20
                ) as answer:
                    if answer.status != 200:
                        since = "0"
                        continue  # it is starting, or has forgotten
                    async for line in answer.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            since = "0"
                            break
                        since = event["object"]["metadata"]["resourceVersion"]
                        self._see(event["object"])

    def _see(self, body: dict[str, Any]) -> None:
        metadata, status = body["metadata"], body.get("status") or {}
        applied = self.adapters.get(metadata.get("name", ""))
        if applied is None or metadata["generation"] < applied.generation or not status:
            return
        applied.status = status
        for condition in status.get("conditions", ()):
            new = condition.get("observedGeneration", 0) >= applied.generation > 0
            ready = (condition["type"], condition["status"]) == ("Ready", "True")
            if ready and new and applied.ready_at is None:
                applied.ready_at = asyncio.get_running_loop().time()
                self.seconds.append(applied.ready_at - applied.at)

    def _path(self, plural: str, name: str = "") -> str:
        return f"{GROUP}/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def _change(self, path: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Change fields of an object's spec: by PUT, for a PATCH is counted as the operator's.

        Again when a status was written between the two requests.
        """
        while True:
            found = await self._ask("GET", path)
            answer = await self._ask("PUT", path, {**found, "spec": {**found["spec"], **spec}})
            if answer["kind"] != "Status":
                return answer

    async def _ask(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send one request; 16 at a time, so that the API server has time for the operator too.

        A conflict is answered, as a Status: what is there already, or is newer by now.
        """
        while True:
            try:
                return await self._ask_once(verb, path, body)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.1)  # nothing was sent: the API server is away

    async def _ask_once(self, verb: str, path: str, body: Any) -> dict[str, Any]:
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        async with (
            self._limit,
            self._api.request(
                verb, path, data=json.dumps(body), headers={"Content-Type": kind}
            ) as answer,
        ):
            found: dict[str, Any] = await answer.json()
            if answer.status >= 400 and answer.status != 409:
                raise AssertionError(f"{verb} {path}: {answer.status} {found.get('message')}")
            return found


_OPERATORS = {
    ("loraadapters", "", "PATCH"): "finalizers",
    ("loraadapters", "status", "PATCH"): "adapter status",
    ("enginepools", "", "PATCH"): "finalizers",
    ("enginepools", "status", "PATCH"): "pool status",
    ("events", "", "POST"): "events",
}
"""(resource, subresource, verb) -> what the operator writes so."""


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    return {
        "apiVersion": "lorafleet.dev/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }
