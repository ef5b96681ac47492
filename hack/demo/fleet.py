"""The fleet of the demo: one cluster, one engine pod, one S3 server, the operator.

What takes long goes on side by side: adapters are trained while the engine starts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from enginepods import EnginePods
from localcluster import LocalCluster
from localstack import ENGINE_SECONDS, Engine, EngineSpec, LocalStack, Operator, S3Server, Sidecar
from processes import answers

from demo import prepare
from demo.cluster import Cluster, established
from demo.model import BASE_MODEL
from demo.screen import Patience, chapter, step

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent.parent
EXAMPLES = REPOSITORY / "charts" / "lorafleet" / "examples"
NAMESPACE = "demo"
ENGINE = "smollm2-0"
ARENA_BYTES = 64 << 20
SLOTS = 2
"""Both max_loras and max_cpu_loras: a third adapter has to take somebody's place."""


@dataclass(frozen=True)
class Fleet:
    """Everything that runs."""

    cluster: Cluster
    store: S3Server
    engine: Engine
    sidecar: Sidecar
    operator: Operator

    def manifest(self, name: str, **s3: str) -> dict[str, Any]:
        """The example `name`, its placeholders filled in; `s3` replaces fields of its source."""
        loaded: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        if loaded["kind"] == "Secret":
            loaded["stringData"] = {
                "accessKeyID": self.store.access_key,
                "secretAccessKey": self.store.secret_key,
            }
        elif loaded["kind"] == "LoRAAdapter":
            loaded["spec"]["source"]["s3"] |= {"endpoint": self.store.endpoint, **s3}
        return loaded


@contextmanager
def start(stack: LocalStack) -> Iterator[Fleet]:
    """Prepare and start everything, in an order that keeps the cores busy."""
    chapter("Preparing")
    binaries = prepare.start_binaries(stack)
    prepare.model(stack)
    training = prepare.start_training(stack)
    prepare.finish_binaries(binaries)
    step("starting the S3 server and the API server")
    store = stack.start_s3()
    with LocalCluster(stack.directory / "cluster", quiet=True) as local:
        cluster = Cluster(local.kubeconfig, NAMESPACE)
        try:
            _install(cluster)
            spec = EngineSpec(
                ENGINE, prepare.MODEL, BASE_MODEL, max_loras=SLOTS, max_cpu_loras=SLOTS
            )
            labels = {"lorafleet.dev/engine-pool": "smollm2"}
            uid = EnginePods(local.kubeconfig, NAMESPACE).create(
                ENGINE, stack.pod_address(0), labels
            )
            step("starting vLLM with the plugin, its sidecar and the operator (about a minute)")
            engine = stack.start_engine(spec)
            sidecar = stack.start_sidecar(engine, uid, ARENA_BYTES)
            operator = stack.start_operator(local.kubeconfig)
            fleet = Fleet(cluster, store, engine, sidecar, operator)
            for name in ("s3-credentials", "enginepool"):
                cluster.apply(fleet.manifest(name))
            sidecar.wait()
            operator.wait()
            prepare.finish_training(training)
            _await_engine(engine)
            cluster.wait("EnginePool", "smollm2", _all_ready, "ready")
            cluster.show("EnginePool")
            yield fleet
        finally:
            stack.stop()  # before the API server, which would wait for the operator's watches


def _await_engine(engine: Engine) -> None:
    """Wait until it serves, saying every while that it goes on."""
    patience = Patience("vLLM is starting")

    def serving() -> bool:
        patience.wait()
        return answers(f"{engine.url}/health")

    engine.process.wait_until(serving, ENGINE_SECONDS, "serving")


def _install(cluster: Cluster) -> None:
    """The custom resources, as `kubectl apply -f crds` would bring them."""
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        stored = cluster.apply(yaml.safe_load(path.read_text()))
        name = stored["metadata"]["name"]
        cluster.wait("CustomResourceDefinition", name, established, "established")


def _all_ready(pool: dict[str, Any] | None) -> bool:
    status = (pool or {}).get("status", {})
    return bool(status.get("totalEngines")) and status["totalEngines"] == status["readyEngines"]
