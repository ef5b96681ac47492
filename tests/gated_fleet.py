"""A simulated fleet whose pods wait for the condition lorafleet.dev/warm, and a watch on what was
said of each of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from simulated_engine import SimulatedEngine, profile_of
from simulated_fleet import BASE, POOL, PORT, SimulatedFleet

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

GATE = "lorafleet.dev/warm"


@dataclass(frozen=True)
class Said:
    """One change of one pod's condition, and what was served when it was seen."""

    pod: str
    status: str
    reason: str
    message: str
    served: frozenset[str]
    """Adapters that the pod's engine served then."""


class GatedFleet(SimulatedFleet):
    """Engines are added by `add`; `said` tells what was said of them, in order."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, engines=0, **options)
        self.said: list[Said] = []
        self._added = 0
        self._pods: asyncio.Task[None] | None = None

    @property
    def pods(self) -> str:
        """The path of the pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def __aenter__(self) -> GatedFleet:
        await super().__aenter__()
        self._pods = asyncio.create_task(self._watch_pods())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pods is not None:
            self._pods.cancel()
            await asyncio.gather(self._pods, return_exceptions=True)
        await super().__aexit__(kind, error, trace)

    async def add(self, name: str, address: str = "", *, node: str = "node") -> SimulatedEngine:
        """Start an engine in a pod with the gate; its `address` may be one that another had."""
        self._added += 1
        address = address or f"{self._network}.{self._subnet}.{self._added}"
        spec = {
            "containers": [{"name": "vllm", "image": "local.invalid/simulated"}],
            "readinessGates": [{"conditionType": GATE}],
            "nodeName": node,  # so that a deletion waits for somebody to confirm it
        }
        body = {"metadata": {"name": name, "labels": {"app": "simulated"}}, "spec": spec}
        made = await self._ask("POST", self.pods, body)
        engine = SimulatedEngine(
            made["metadata"]["uid"],
            f"{address}:{PORT}",
            profile_of(BASE),
            self.behaviour,
            self.books,
        )
        await engine.start()
        self.engines[name] = engine
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        await self._ask("PATCH", f"{self.pods}/{name}/status", {"status": status})
        return engine

    async def label(self, name: str, key: str, value: str | None) -> None:
        """Set or take away a label of a pod."""
        await self._ask("PATCH", f"{self.pods}/{name}", {"metadata": {"labels": {key: value}}})

    async def evict(self, name: str) -> None:
        """Evict a pod as `kubectl drain` does: it is told, and ends later."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name},
            "deleteOptions": {"gracePeriodSeconds": 60},
        }
        await self._ask("POST", f"{self.pods}/{name}/eviction", body)

    async def end(self, name: str) -> None:
        """Kill an engine, and confirm the end of its pod as its node would."""
        await self.engines.pop(name).kill()
        await self._ask("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})

    async def set_pool(self, **spec: Any) -> None:
        """Change fields of the pool's spec."""
        await self._change(self._path("enginepools", POOL), spec)

    async def pool_status(self) -> dict[str, Any]:
        """Return the pool's status."""
        status: dict[str, Any] = (await self._ask("GET", self._path("enginepools", POOL)))["status"]
        return status

    async def status_of(self, name: str) -> dict[str, Any]:
        """Return an adapter's status."""
        found = await self._ask("GET", self._path("loraadapters", name))
        return found.get("status") or {}

    async def trouble_of(self, name: str) -> str:
        """Return what the pool's status says is wrong with the engine."""
        engines = (await self.pool_status()).get("engines", ())
        return next((e["message"] for e in engines if e["podName"] == name), "")

    async def settled_on(self, names: set[str], seconds: float = 60) -> None:
        """Wait until every adapter is Ready, and its replicas are on these engines."""

        def done() -> bool:
            there = [self.served_by(name) for name in names]
            return all(
                each.status.get("readyEngines") == self.replicas
                and sum(f"{self.namespace}/{name}" in served for served in there) >= self.replicas
                for name, each in self.adapters.items()
            )

        await self.until(done, seconds)

    async def apply_everywhere(self, name: str) -> None:
        """Apply an adapter that every engine has to serve."""
        self._put_content(name, 1)
        spec = {
            "baseModel": BASE,
            "poolRef": {"name": POOL},
            "source": {"persistentVolumeClaim": {"claimName": "claim", "path": f"{name}/1"}},
        }
        body = {
            "apiVersion": "lorafleet.dev/v1alpha1",
            "kind": "LoRAAdapter",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self._ask("POST", self._path("loraadapters"), body)

    def reasons(self, name: str) -> list[str]:
        """Return what was said of a pod, in order."""
        return [each.reason for each in self.said if each.pod == name]

    def served_by(self, name: str) -> frozenset[str]:
        """Return the adapters that an engine serves."""
        entries = self.engines[name].loaded.values()
        return frozenset(entry.adapter for entry in entries if entry.published)

    async def until(self, done: Callable[[], Any], seconds: float = 60) -> None:
        """Wait until `done()`."""
        async with asyncio.timeout(seconds):
            while not done():
                await asyncio.sleep(0.05)

    async def _watch_pods(self) -> None:
        place = f"{self.pods}?watch=1&resourceVersion=0"
        while True:
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._api.get(place, timeout=timeout, read_bufsize=1 << 20) as answer:
                async for line in answer.content:
                    self._note(json.loads(line)["object"])

    def _note(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        last = next((each for each in reversed(self.said) if each.pod == name), None)
        for each in (pod.get("status") or {}).get("conditions") or ():
            now = (each["status"], each.get("reason", ""), each.get("message", ""))
            if each["type"] != GATE or (last and (last.status, last.reason, last.message) == now):
                continue
            served = self.served_by(name) if name in self.engines else frozenset()
            self.said.append(Said(name, *now, served))
