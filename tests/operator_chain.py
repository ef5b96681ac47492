"""Operator, sidecars and fake engines as processes against a real API server, for chain tests."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from enginepods import EnginePods
from kubernetes import client, config
from localstack import Engine, EngineSpec, LocalStack
from processes import free_port, listens

if TYPE_CHECKING:
    from localstack import Operator, Sidecar

HERE = Path(__file__).parent
CASES = HERE / "cases"
BASE = "tiny/qwen3-dense"
GROUP = ("lorafleet.dev", "v1alpha1")


class Chain:
    """One namespace of the cluster with its engines and one operator; `adapter(..)` and look."""

    arena_bytes = 64 << 20

    def __init__(
        self, kubeconfig: Path, directory: Path, namespace: str, network: str = ""
    ) -> None:
        """network: as LocalStack's; the engines listen there too then, all at one port."""
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.stack = LocalStack(directory, network)
        self.engine_port = free_port() if network else 0
        self.pods = EnginePods(kubeconfig, namespace)
        self.custom = client.CustomObjectsApi(config.new_client_from_config(str(kubeconfig)))
        self.core = self.pods.api
        self.root = directory / "volumes"
        self.engines: dict[str, Engine] = {}
        self.sidecars: dict[str, Sidecar] = {}
        self.uids: dict[str, str] = {}
        self.operator: Operator | None = None

    # The fleet

    def start_operator(self, **settings: str) -> Operator:
        values = {
            "LORAFLEET_NAMESPACES": self.namespace,
            "LORAFLEET_VOLUME_ROOT": str(self.root),
            "LORAFLEET_RESYNC_SECONDS": "5",
            "LORAFLEET_HEARTBEAT_SECONDS": "2",
            "LORAFLEET_LOG_LEVEL": "INFO",
            **settings,
        }
        self.operator = self.stack.start_operator(self.kubeconfig, **values)
        self.operator.wait()
        return self.operator

    def start_engine(
        self, name: str, index: int, *arguments: str, app: str = "vllm", **sidecar: str
    ) -> None:
        """Start a fake engine, its sidecar (with settings of its own) and its pod."""
        port = self.engine_port or free_port()
        address = self.stack.pod_address(index)
        host = address if self.engine_port else "127.0.0.1"
        volume = self.stack.volume(name)
        program = HERE / "fake_engine_process.py"
        process = self.stack.start(
            name, [sys.executable, program, volume, str(port), "--host", host, *arguments]
        )
        process.wait_until(lambda: listens(host, port), 60)
        spec = EngineSpec(name, Path(), BASE)
        engine = Engine(spec, process, address, f"http://{host}:{port}", volume)
        self.engines[name] = engine
        self.uids[name] = self.pods.create(name, address, {"app": app})
        self.start_sidecar(name, **sidecar)

    def start_sidecar(self, name: str, **sidecar: str) -> None:
        """Start the sidecar of an engine, also again after it was killed."""
        settings = {"LORAFLEET_REFRESH_SECONDS": "0.2", **sidecar}
        self.sidecars[name] = self.stack.start_sidecar(
            self.engines[name], self.uids[name], arena_bytes=self.arena_bytes, **settings
        )
        self.sidecars[name].wait()

    def stop(self) -> None:
        """End every process; the namespace's objects lose their finalizers and go."""
        self.stack.stop()
        for plural in ("loraadapters", "enginepools"):
            for item in self._list(plural):
                name = item["metadata"]["name"]
                patch = {"metadata": {"finalizers": None}}
                self.custom.patch_namespaced_custom_object(
                    *GROUP, self.namespace, plural, name, patch
                )
                self.delete(plural, name)

    # The API

    def pool(self, name: str = "pool", app: str = "vllm", **more: Any) -> None:
        spec = {"selector": {"matchLabels": {"app": app}}, "baseModel": BASE, **more}
        self._create("enginepools", "EnginePool", name, spec)

    def adapter(self, name: str, case: str = "d01-plain-bf16", **spec: Any) -> None:
        """Apply an adapter whose source is a copy of one of the handed cases."""
        self.put_source(name, case)
        claim = {"claimName": "claim", "path": name}
        full = {
            "baseModel": BASE,
            "poolRef": {"name": "pool"},
            "source": {"persistentVolumeClaim": claim, "pollIntervalSeconds": 1},
            "drainTimeoutSeconds": 1,
            **spec,
        }
        self._create("loraadapters", "LoRAAdapter", name, full)

    def put_source(self, name: str, case: str) -> None:
        """Make the content of `case` the adapter's source."""
        target = self.root / self.namespace / "claim" / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(CASES / case, target)

    def get(self, name: str, plural: str = "loraadapters") -> dict[str, Any]:
        found: dict[str, Any] = self.custom.get_namespaced_custom_object(
            *GROUP, self.namespace, plural, name
        )
        return found

    def status(self, name: str, plural: str = "loraadapters") -> dict[str, Any]:
        return dict(self.get(name, plural).get("status") or {})

    def condition(self, name: str, type_: str, plural: str = "loraadapters") -> tuple[str, str]:
        """Return (status, reason) of a condition; empty strings while it is not there."""
        found = self.full_condition(name, type_, plural)
        return found.get("status", ""), found.get("reason", "")

    def ready(self, name: str, *others: str) -> bool:
        """Whether an adapter says that it is served as wanted, and that this is none of `others`.

        By one look: of two, the second may be at what a pass has begun in between.
        """
        status = self.status(name)
        said = {
            each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", [])
        }
        return said.get("Ready") == ("True", "Ready") and status.get("digest", "") not in others

    def full_condition(self, name: str, type_: str, plural: str = "loraadapters") -> dict[str, Any]:
        conditions = self.status(name, plural).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    def delete(self, plural: str, name: str) -> None:
        try:
            self.custom.delete_namespaced_custom_object(*GROUP, self.namespace, plural, name)
        except client.ApiException as error:
            if error.status != 404:
                raise

    def exists(self, name: str) -> bool:
        return any(item["metadata"]["name"] == name for item in self._list("loraadapters"))

    def adapters(self) -> list[dict[str, Any]]:
        return self._list("loraadapters")

    def events(self, name: str) -> list[str]:
        """Return the reasons of Events about an adapter."""
        found = self.core.list_namespaced_event(self.namespace).items
        return [event.reason for event in found if event.involved_object.name == name]

    # The engines, as a user sees them

    def answer(self, engine: str, model: str) -> str:
        """Return what the engine answers: the first 12 digits of the revision, or ""."""
        response = httpx.post(
            f"{self.engines[engine].url}/v1/completions",
            json={"model": model, "prompt": "x"},
            timeout=60,
        )
        return str(response.json()["choices"][0]["text"]) if response.status_code == 200 else ""

    def served(self, engine: str) -> set[str]:
        """Return the names that /v1/models lists beside the base model."""
        cards = httpx.get(f"{self.engines[engine].url}/v1/models", timeout=60).json()["data"]
        return {card["id"] for card in cards} - {BASE}

    def loads(self, engine: str) -> int:
        """Return how many loads the engine was ever asked for."""
        return len(httpx.get(f"{self.engines[engine].url}/test/loads", timeout=60).json())

    def moves(self, engine: str, name: str) -> list[str]:
        """Return which digests a served name came to mean since the engine's start, in that order."""
        found = httpx.get(f"{self.engines[engine].url}/test/moves").json()
        return [digest for digest, _ in groupby(digest for who, digest in found if who == name)]

    def restart_engine(self, name: str) -> None:
        """Start an engine that was killed again, as its pod's container is."""
        engine = self.engines[name]
        process = self.stack.start(f"{name}-again", engine.process.popen.args)
        host, port = engine.url.removeprefix("http://").split(":")
        process.wait_until(lambda: listens(host, int(port)), 30)
        self.engines[name] = replace(engine, process=process)

    def _create(self, plural: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        body = {
            "apiVersion": "/".join(GROUP),
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        self.custom.create_namespaced_custom_object(*GROUP, self.namespace, plural, body)

    def _list(self, plural: str) -> list[dict[str, Any]]:
        found = self.custom.list_namespaced_custom_object(*GROUP, self.namespace, plural)
        return list(found["items"])
