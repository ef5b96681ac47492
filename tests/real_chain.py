"""A chain whose engine is a real vLLM on the CPU with the tiny dense model, fed from a real S3."""

from __future__ import annotations

import json
import secrets
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tiny_models
from kubernetes import config, utils
from localcluster import LocalCluster
from localstack import EngineSpec, S3Server
from operator_chain import BASE, GROUP, Chain
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CRDS = Path(__file__).parents[1] / "crds"
ENGINE = "engine-0"
NOISY = "noisy"
"""Another namespace that the operator serves."""
# Two OpenMP threads wait for one another whenever something else needs a core.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
PROMPT = "t5 t17 t200 t3 t41 t77"


class RealChain(Chain):
    """One namespace, one S3 server and real engines; adapters come from S3 with a Secret."""

    def __init__(self, kubeconfig: Path, directory: Path, namespace: str, model: Path) -> None:
        super().__init__(kubeconfig, directory, namespace)
        self.model = model
        self.stock: dict[str, str] = {}
        """What stock vLLM answers with an adapter's files, by its served name."""
        self.files = directory / "adapters"
        self.http = httpx.Client(timeout=120)  # one: each makes a TLS context, 0.1 s of CPU
        self.s3: S3Server = self.stack.start_s3()
        self.secret()

    def stop(self) -> None:
        self.http.close()
        super().stop()

    def start_vllm(
        self,
        name: str,
        index: int = 0,
        *arguments: str,
        sidecar: dict[str, str] | None = None,
        **env: str,
    ) -> None:
        """Start vLLM (2 GPU slots, max_cpu_loras 3), its sidecar and its pod; wait for all."""
        spec = EngineSpec(
            name,
            self.model,
            BASE,
            max_loras=2,
            max_cpu_loras=3,
            arguments=arguments,
            env={**ONE_THREAD, **env},
        )
        engine = self.stack.start_engine(spec, index)
        self.engines[name] = engine
        self.uids[name] = self.pods.create(name, engine.address, {"app": "vllm"})
        self.start_sidecar(name, **(sidecar or {}))
        engine.wait()

    def start_sidecar(self, name: str, **settings: str) -> None:
        self.sidecars[name] = self.stack.start_sidecar(
            self.engines[name],
            self.uids[name],
            arena_bytes=64 << 20,
            LORAFLEET_REFRESH_SECONDS="0.2",
            **settings,
        )
        self.sidecars[name].wait()

    def restart_vllm(self, name: str, index: int = 0) -> None:
        """Start the engine's process again in the same pod, as a kubelet would."""
        spec = self.engines[name].spec
        address, port = self.engines[name].url.removeprefix("http://").split(":")
        arguments = (*spec.arguments, "--port", port)  # the last --port counts
        again = EngineSpec(
            name, spec.model, BASE, max_loras=2, max_cpu_loras=3, arguments=arguments, env=spec.env
        )
        self.engines[name] = self.stack.start_engine(again, index)
        self.engines[name] = replace(self.engines[name], url=f"http://{address}:{port}")
        self.pods.restarted(name)
        self.engines[name].wait()

    # Sources

    @contextmanager
    def within(self, namespace: str) -> Iterator[None]:
        """Act in another namespace."""
        here, self.namespace = self.namespace, namespace
        try:
            yield
        finally:
            self.namespace = here

    def secret(self) -> None:
        """Let adapters of the namespace read from the S3 server."""
        data = {"accessKeyID": self.s3.access_key, "secretAccessKey": self.s3.secret_key}
        body = {"metadata": {"name": "s3"}, "stringData": data}
        self.core.create_namespaced_secret(self.namespace, body)

    def make(self, name: str, seed: int, **options: Any) -> Path:
        """Write a random adapter of all linear modules, strong enough to change the tokens."""
        return tiny_models.make_adapter(
            self.files / name,
            tiny_models.dense_modules(),
            seed=seed,
            base_model_name_or_path=BASE,
            **options,
        )

    def s3_adapter(self, name: str, files: Path | None, **spec: Any) -> None:
        """Upload `files` and apply an adapter that reads them from S3."""
        if files is not None:
            self.s3.upload(files, name)
        source = {
            "s3": {
                "bucket": self.s3.bucket,
                "prefix": name,
                "region": "us-east-1",
                "endpoint": self.s3.endpoint,
                "pathStyle": True,
            },
            "credentialsSecretRef": {"name": "s3"},
            "pollIntervalSeconds": 0,
        }
        full = {
            "baseModel": BASE,
            "poolRef": {"name": "pool"},
            "source": source,
            "drainTimeoutSeconds": 30,
            **spec,
        }
        self._create("loraadapters", "LoRAAdapter", name, full)

    def patch_pool(self, spec: dict[str, Any]) -> None:
        """Change the pool's spec."""
        self.custom.patch_namespaced_custom_object(
            *GROUP, self.namespace, "enginepools", "pool", {"spec": spec}
        )

    def patch(self, name: str, spec: dict[str, Any]) -> int:
        """Change an adapter's spec; returns its generation then."""
        changed: dict[str, Any] = self.custom.patch_namespaced_custom_object(
            "lorafleet.dev", "v1alpha1", self.namespace, "loraadapters", name, {"spec": spec}
        )
        return int(changed["metadata"]["generation"])

    def wait_ready(self, name: str, seconds: float = 120) -> dict[str, Any]:
        try:
            eventually(lambda: self.condition(name, "Ready") == ("True", "Ready"), seconds)
        except AssertionError:
            pytest.fail(f"{name} is not Ready: {json.dumps(self.status(name))}")
        return self.status(name)

    def wait_gone(self, name: str) -> None:
        self.delete("loraadapters", name)
        eventually(lambda: not self.exists(name), 60, f"{name} stays after its deletion")

    # Requests

    def complete(
        self, engine: str, model: str, prompt: str = PROMPT, max_tokens: int = 16
    ) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.http.post(
            f"{self.engines[engine].url}/v1/completions", json={**body, "ignore_eos": True}
        )

    def tokens(self, engine: str, model: str, prompt: str = PROMPT, max_tokens: int = 16) -> str:
        """Return the greedy answer of `model`; fails unless it is a 200."""
        response = self.complete(engine, model, prompt, max_tokens)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def many(self, engine: str, models: Iterable[str], at_once: int = 8) -> list[str]:
        """Return the answers of one request per entry of `models`, `at_once` in flight."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda model: self.tokens(engine, model), models))

    def state(self, engine: str) -> dict[str, Any]:
        """Return what the engine's plugin says of its revisions and its worker now."""
        socket = self.engines[engine].volume / "run" / "engine.sock"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as plugin:
            return dict(plugin.get("http://engine/v1/state").json())

    def stock_tokens(self, engine: str, files: Path, max_tokens: int = 16) -> str:
        """Return what vLLM answers with the adapter loaded by its own path from disk."""
        name = f"stock-{files.name}"
        url = self.engines[engine].url
        loaded = self.http.post(
            f"{url}/v1/load_lora_adapter",
            json={"lora_name": name, "lora_path": str(files)},
            timeout=60,
        )
        assert loaded.status_code == 200, loaded.text
        try:
            return self.tokens(engine, name, max_tokens=max_tokens)
        finally:
            self.http.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)

    def metric(self, engine: str, name: str, **labels: str) -> float:
        """Return the sum of a sidecar metric's samples that carry `labels`."""
        from prometheus_client.parser import text_string_to_metric_families

        text = self.http.get(self.sidecars[engine].metrics_url, timeout=60).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@contextmanager
def real_fleet() -> Iterator[RealChain]:
    """A cluster of its own with an operator, a pool and one ready engine, ENGINE."""
    with tempfile.TemporaryDirectory(prefix="lorafleet-real-") as directory:
        root = Path(directory)
        model = tiny_models.make_dense(root / "model")
        with LocalCluster(root / "cluster", quiet=True) as cluster:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted(CRDS.glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            chain = RealChain(
                cluster.kubeconfig, root / "chain", f"team-{secrets.token_hex(3)}", model
            )
            try:
                chain.start_vllm(ENGINE, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1")
                chain.core.create_namespace({"metadata": {"name": NOISY}})
                chain.start_operator(LORAFLEET_NAMESPACES=f"{chain.namespace},{NOISY}")
                chain.pool()
                eventually(
                    lambda: chain.condition("pool", "EnginesReady", "enginepools")[0] == "True",
                    60,
                    "the pool has no ready engine",
                )
                yield chain
            finally:
                chain.stop()
