"""What chaos happens to: engines, sidecars, operator, API server and S3 server, all of them real."""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from kubernetes import config, utils

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "hack")]

import tiny_models
from localcluster import LocalCluster
from real_chain import RealChain
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = 16


@contextmanager
def running_fleet(
    engines: int, *, arena_bytes: int = 64 << 20, **operator: str
) -> Iterator[RealChain]:
    """Yield a namespace with a pool of `engines` vLLMs on the CPU and an operator; end them after."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with us
    with tempfile.TemporaryDirectory(prefix="lorafleet-bench-") as directory:
        root = Path(directory)
        model = tiny_models.make_dense(root / "model")
        with LocalCluster(root / "cluster", quiet=True) as cluster:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            name = f"team-{secrets.token_hex(3)}"
            chain = RealChain(cluster.kubeconfig, root / "chain", name, model)
            try:
                with ThreadPoolExecutor(engines) as starting:
                    for each in [
                        starting.submit(_start, chain, n, arena_bytes) for n in range(engines)
                    ]:
                        each.result()
                chain.start_operator(**operator)
                chain.pool()
                eventually(
                    lambda: chain.condition("pool", "EnginesReady", "enginepools")[0] == "True", 60
                )
                yield chain
            finally:
                chain.stop()


def _start(chain: RealChain, index: int, arena_bytes: int) -> None:
    sidecar = {"LORAFLEET_ARENA_BYTES": str(arena_bytes)}
    name = f"engine-{index}"
    chain.start_vllm(name, index, sidecar=sidecar, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1")
    print(f"engine-{index} serves", flush=True)


def control(chain: RealChain, engine: str) -> httpx.Client:
    """Return a client of the plugin's control socket."""
    path = str(chain.engines[engine].volume / "run" / "engine.sock")
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=path), base_url="http://engine", timeout=10
    )


def instance(chain: RealChain, engine: str) -> str:
    """Return the instance of the engine that runs now, empty if none answers."""
    try:
        with control(chain, engine) as client:
            return str(client.get("/v1/handshake").json()["instance"])
    except (httpx.HTTPError, ValueError, KeyError):
        return ""
