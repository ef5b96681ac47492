"""The fleet that push.py pushes to: an API server, the operator, one sidecar, one vLLM with the plugin."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import accelerator
from host_warming import warmed
from kubernetes import config, utils
from localcluster import LocalCluster
from localstack import EngineSpec
from operator_chain import Chain
from pushing import taking_pushes
from server import BASE, Server, write_model
from waiting import eventually

if TYPE_CHECKING:
    from contextlib import ExitStack

    from localstack import Operator, Sidecar
    from lorafleet.push import Fleet
    from record import Record
    from shapes import Shape

CRDS = Path(__file__).resolve().parents[2] / "crds"
_SAMPLING = Path(__file__).with_name("sampling.py")
ARENA = 3.25  # adapters: what is served, what comes, one of the history
OTHER_FILES = 3.25  # adapters: what the operator keeps of three pushes, and stock's file


@dataclass
class PushFleet:
    """What was started; `trainer` is connected to it, `pids` are of all processes that matter."""

    chain: Chain
    server: Server
    sidecar: Sidecar
    operator: Operator
    trainer: Fleet
    files: Path
    """Where the operator keeps pushes, and room for stock's file."""
    pids: dict[str, int]

    def sampling(self, name: str) -> list[str]:
        """Return the command that watches an adapter."""
        urls = [self.operator.metrics_url, self.sidecar.metrics_url]
        key = f"{self.chain.namespace}/{name}"
        return [sys.executable, str(_SAMPLING), str(self.chain.kubeconfig), key, *urls]


def start(stack: ExitStack, root: Path, memory: Path, shape: Shape, figures: Record) -> PushFleet:
    """Start everything; it ends with `stack`."""
    cluster = stack.enter_context(LocalCluster(root / "cluster", quiet=True))
    api = config.new_client_from_config(str(cluster.kubeconfig))
    for path in sorted(CRDS.glob("*.yaml")):
        utils.create_from_yaml(api, str(path))
    figures.say("the API server is up")
    chain = Chain(cluster.kubeconfig, root / "chain", f"b-{secrets.token_hex(3)}")
    stack.callback(chain.stack.stop)  # the objects go with the cluster
    volume, address = chain.stack.volume("engine"), chain.stack.pod_address(0)
    server = Server(
        write_model(shape, root / "model"), volume, _options(shape), root / "engine.log"
    )
    # All that a sidecar has to know of an engine that is not there yet, as in a pod that starts.
    engine = SimpleNamespace(
        spec=EngineSpec("engine", root / "model", BASE),
        address=address,
        url=f"http://127.0.0.1:{server.port}",
        volume=volume,
    )
    uid = chain.pods.create("engine", address, {"app": "vllm"})
    paths = {"PYTHONPATH": _paths()}
    arena = int(ARENA * shape.adapter_bytes) + (64 << 20)
    sidecar = chain.stack.start_sidecar(engine, uid, arena, **paths)
    sidecar.wait()
    figures.say(f"the sidecar is up, with an arena of {arena / 2**30:.1f} GiB")
    files = _files(memory, root, shape)
    with warmed(int(OTHER_FILES * 2 * shape.adapter_bytes)):
        stack.enter_context(server)
    figures.put(engine_start_s=figures.seconds, files=str(files.parent))
    trainer = stack.enter_context(taking_pushes(chain, files / "spool", **paths))
    chain.pool(baseModel=BASE)
    state = lambda: chain.condition("pool", "EnginesReady", "enginepools")  # noqa: E731
    eventually(lambda: state()[0] == "True", 60, "the pool has no ready engine")
    assert chain.operator is not None
    pids = {
        "trainer": os.getpid(),
        "operator": chain.operator.process.pid,
        "sidecar": sidecar.process.pid,
        "engine": server.process.pid,
        **json.loads((cluster.directory / "cluster.json").read_text()),
    }
    figures.say("the pool is ready")
    return PushFleet(chain, server, sidecar, chain.operator, trainer, files, pids)


def _paths() -> str:
    """Return the Python path of operator and sidecar: packages of their own, where there are any."""
    both = (os.environ.get("LORAFLEET_BENCH_SITE"), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(filter(None, both))


def _files(memory: Path, disk: Path, shape: Shape) -> Path:
    """Return where the operator keeps pushes and stock vLLM finds its file: memory if there is room."""
    room = shutil.disk_usage(memory).free
    wanted = int(OTHER_FILES * shape.adapter_bytes)
    folder = (memory if room >= wanted else disk) / "files"
    folder.mkdir()
    return folder


def _options(shape: Shape) -> dict[str, Any]:
    return {
        "load_format": "dummy",
        "enable_lora": True,
        "max_loras": 4,
        "max_cpu_loras": 4,
        "max_lora_rank": shape.rank,
        "max_model_len": 2048 if accelerator.CUDA else 512,
        "max_num_seqs": 4,
        "dtype": "bfloat16",
        "no_enable_prefix_caching": True,
        "enforce_eager": True,  # nothing here decodes for long, and the start is half as long
        "disable_uvicorn_access_log": True,
        # The trainer has the rest.
        **(
            {"kv_cache_memory_bytes": 4 << 30, "gpu_memory_utilization": 0.8}
            if accelerator.CUDA
            else {}
        ),
    }
