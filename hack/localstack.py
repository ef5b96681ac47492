"""The processes of one small fleet on this machine, for the demo and the tests of the whole chain.

`LocalStack` starts real ones: an S3 server, vLLM on the CPU, sidecars, the operator. The API server
and the Pod objects come from `localcluster` and `enginepods`. Everything listens on loopback, each
engine at an address of its own; everything ends with the stack.

    with LocalStack(directory) as stack:
        store = stack.start_s3()
        engine = stack.start_engine(EngineSpec("engine-0", model=path, base_model="org/name"))
        sidecar = stack.start_sidecar(engine, pod_uid=uid)
        stack.start_operator(kubeconfig)
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from localcluster import find_binary
from processes import LocalProcess, answers, free_port, listens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

ENGINE_SECONDS = 420
"""How long an engine may take to start: 60-100 s on two idle cores."""


@dataclass(frozen=True)
class S3Server:
    """A running S3 server with one bucket, and the log of its requests."""

    process: LocalProcess
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    access_log: Path
    root: Path

    def reads(self) -> int:
        """How many requests that read (GET, HEAD, lists) it has answered since its start."""
        if not self.access_log.exists():
            return 0
        calls = (line for line in self.access_log.read_text().splitlines() if " s3_" in line)
        return sum(" s3_PutObject " not in line for line in calls)

    def upload(self, directory: Path, prefix: str) -> None:
        """Put the adapter in `directory` under `prefix`, through the S3 API."""
        from obstore.store import S3Store

        store = S3Store(
            self.bucket,
            endpoint=self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            store.put(f"{prefix}/{name}", (directory / name).read_bytes())


@dataclass(frozen=True)
class EngineSpec:
    """What to start: one vLLM with LoRA slots."""

    name: str
    model: Path
    base_model: str
    max_loras: int = 2
    max_cpu_loras: int = 2
    max_lora_rank: int = 8
    max_model_len: int = 1024
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """A started vLLM; `address` is its pod's."""

    spec: EngineSpec
    process: LocalProcess
    address: str
    url: str
    volume: Path

    def wait(self, seconds: float = ENGINE_SECONDS) -> None:
        """Return when it serves."""
        self.process.wait_until(lambda: answers(f"{self.url}/health"), seconds, "serving")


@dataclass(frozen=True)
class Sidecar:
    """A started sidecar."""

    process: LocalProcess
    address: str
    port: int
    metrics_url: str

    def wait(self, seconds: float = 60) -> None:
        """Return when its gRPC service accepts connections and its metrics answer."""
        self.process.wait_until(
            lambda: listens(self.address, self.port) and answers(self.metrics_url), seconds
        )


@dataclass(frozen=True)
class Operator:
    """A started operator."""

    process: LocalProcess
    metrics_url: str
    health_url: str

    def wait(self, seconds: float = 60) -> None:
        """Return when it says that it lives."""
        self.process.wait_until(lambda: answers(self.health_url), seconds)


class LocalStack:
    """Starts processes and ends them all; logs lie in `directory`/logs, one file each."""

    sidecar_port = 7070

    def __init__(self, directory: Path, network: str = "") -> None:
        """network: the first three parts of the engine pods' addresses, loopback of its own if empty."""
        self.directory = directory
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._memory = Path(tempfile.mkdtemp(prefix="lorafleet-", dir="/dev/shm"))
        self._processes: list[LocalProcess] = []
        # A network of our own, so that two stacks on one machine do not meet.
        self._network = network or f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None
    ) -> LocalProcess:
        """Start anything that shall end with the stack."""
        process = LocalProcess.start(name, command, self.logs / f"{name}.log", env)
        self._processes.append(process)
        return process

    def start_s3(self, bucket: str = "adapters") -> S3Server:
        """Start the S3 server with one empty bucket and wait for it."""
        root = Path(tempfile.mkdtemp(prefix="s3-", dir=self.directory))
        (root / "buckets" / bucket).mkdir(parents=True)
        (root / "metadata").mkdir()
        access_log = root / "access.log"
        access_key, secret_key = "demo-access", "demo-secret-key"
        port = free_port()
        process = self.start(
            "s3",
            [
                *(find_binary("versitygw"), "--port", f"127.0.0.1:{port}", "--quiet"),
                *("--access", access_key, "--secret", secret_key, "--access-log", access_log),
                # Beside the objects, because not every file system has extended attributes.
                *("posix", "--sidecar", root / "metadata", root / "buckets"),
            ],
        )
        process.wait_until(lambda: listens("127.0.0.1", port), 60)
        return S3Server(
            process, f"http://127.0.0.1:{port}", access_key, secret_key, bucket, access_log, root
        )

    def pod_address(self, index: int) -> str:
        """The loopback address of the engine pod `index`."""
        return f"{self._network}.{index + 1}"

    def volume(self, name: str) -> Path:
        """The memory-backed volume that the engine pod `name` shares with its sidecar."""
        path = self._memory / name
        path.mkdir(exist_ok=True)
        return path

    def start_engine(self, spec: EngineSpec, index: int = 0) -> Engine:
        """Start vLLM with the plugin (installed in this environment) and return at once."""
        address = self.pod_address(index)
        port = free_port(address)
        volume = self.volume(spec.name)
        process = self.start(
            spec.name,
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
                *("--model", spec.model, "--served-model-name", spec.base_model),
                *("--host", address, "--port", str(port), "--enable-lora", "--enforce-eager"),
                *("--max-loras", str(spec.max_loras)),
                *("--max-cpu-loras", str(spec.max_cpu_loras)),
                *("--max-lora-rank", str(spec.max_lora_rank)),
                *("--max-model-len", str(spec.max_model_len), *spec.arguments),
            ],
            {
                "LORAFLEET_VOLUME": str(volume),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                **spec.env,
            },
        )
        return Engine(spec, process, address, f"http://{address}:{port}", volume)

    def start_sidecar(
        self, engine: Engine, pod_uid: str, arena_bytes: int = 256 << 20, **settings: str
    ) -> Sidecar:
        """Start the sidecar of `engine`'s pod; `settings` are more LORAFLEET_ variables."""
        metrics_port = free_port(engine.address)
        process = self.start(
            f"{engine.spec.name}-sidecar",
            [sys.executable, "-m", "lorafleet_sidecar", "serve"],
            {
                "LORAFLEET_VOLUME": str(engine.volume),
                "LORAFLEET_ARENA_BYTES": str(arena_bytes),
                "LORAFLEET_LISTEN": f"{engine.address}:{self.sidecar_port}",
                "LORAFLEET_ENGINE_URL": engine.url,
                "LORAFLEET_POD_UID": pod_uid,
                "LORAFLEET_METRICS_LISTEN": f"{engine.address}:{metrics_port}",
                **settings,
            },
        )
        url = f"http://{engine.address}:{metrics_port}/metrics"
        return Sidecar(process, engine.address, self.sidecar_port, url)

    def start_operator(self, kubeconfig: Path, **settings: str) -> Operator:
        """Start the operator against any cluster; `settings` are more LORAFLEET_ variables."""
        port = free_port()
        process = self.start(
            "operator",
            [sys.executable, "-m", "lorafleet_operator", "run"],
            {
                "KUBECONFIG": str(kubeconfig),
                "LORAFLEET_LISTEN": f"127.0.0.1:{port}",
                "LORAFLEET_ALLOW_PRIVATE_ADDRESSES": "true",
                **settings,
            },
        )
        base = f"http://127.0.0.1:{port}"
        return Operator(process, f"{base}/metrics", f"{base}/healthz")

    def stop(self) -> None:
        """End every process, all at once, and free the memory volumes. May be called twice."""
        for process in reversed(self._processes):
            if process.running:
                process.popen.terminate()
        while self._processes:
            self._processes.pop().stop()
        shutil.rmtree(self._memory, ignore_errors=True)
