"""The whole chain: apply -> Ready for a small adapter, and memory while a large one is staged.

    python bench/chain.py [--gib 2] [--runs 20] [--skip-real]

Part one: a real vLLM on the CPU (2-layer random Qwen3), warm; a small adapter from a volume is
applied, waited for and deleted, `runs` times. Beside it, in the same run, what users have today:
POST /v1/load_lora_adapter with the same files from disk, which says nothing about whether the
adapter answers.

Part two: the real operator and sidecar bring a sparse adapter of `gib` GiB into the arena. Printed:
growth of each process's anonymous resident memory (the arena itself is the budget) at its peak, and
MB/s from apply to Ready. The engine of this part is a stand-in that checks no shapes.

Exits 1 when operator or sidecar grew by more than 256 MiB.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack"), str(ROOT / "bench")]

import httpx
from kubernetes import config, utils
from localcluster import LocalCluster
from operator_chain import Chain
from waiting import eventually

LIMIT_MIB = 256
MIB = 1 << 20


def anonymous_kib(pid: int) -> int:
    """Return RssAnon of one process in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


class Peak:
    """The largest growth of some processes' anonymous memory while the block runs, in MiB."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._before = {name: anonymous_kib(pid) for name, pid in pids.items()}
        self._most = dict(self._before)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            for name, pid in self._pids.items():
                self._most[name] = max(self._most[name], anonymous_kib(pid))

    def growth(self) -> dict[str, float]:
        return {name: (self._most[name] - self._before[name]) / 1024 for name in self._pids}


def make_large(folder: Path, data_bytes: int, layers: int = 32, rank: int = 8) -> None:
    """Write a valid adapter whose tensor data is a hole in the file: one pair for each layer."""
    folder.mkdir(parents=True)
    wide = data_bytes // (layers * 2 * rank * 2)
    header: dict[str, Any] = {}
    begin = 0
    for layer in range(layers):
        for letter, shape in (("A", [rank, wide]), ("B", [wide, rank])):
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{letter}.weight"
            end = begin + 2 * rank * wide
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + begin)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def ready(chain: Chain, name: str, seconds: float = 300) -> None:
    eventually(lambda: chain.condition(name, "Ready") == ("True", "Ready"), seconds, name)


def apply_to_ready(chain: Any, runs: int) -> None:
    """Print apply -> Ready beside a stock load of the same files."""
    files = chain.make("small", seed=1)
    chain.root.mkdir(parents=True, exist_ok=True)
    ours, stock = [], []
    for run in range(runs):
        name = f"small-{run}"
        chain.make(name, seed=100 + run)
        chain.s3.upload(chain.files / name, name)
        started = time.monotonic()
        chain.s3_adapter(name, None)
        while chain.condition(name, "Ready") != ("True", "Ready"):
            time.sleep(0.005)
        ours.append(time.monotonic() - started)
        chain.wait_gone(name)
        url = chain.engines["engine-0"].url
        started = time.monotonic()
        body = {"lora_name": f"stock-{run}", "lora_path": str(chain.files / name)}
        httpx.post(f"{url}/v1/load_lora_adapter", json=body, timeout=60).raise_for_status()
        stock.append(time.monotonic() - started)
        httpx.post(
            f"{url}/v1/unload_lora_adapter", json={"lora_name": f"stock-{run}"}, timeout=60
        ).raise_for_status()
    size = (files / "adapter_model.safetensors").stat().st_size
    ours.sort()
    print(
        f"apply -> Ready, {size / MIB:.1f} MiB from S3: median {statistics.median(ours):.3f} s, "
        f"p90 {ours[int(0.9 * (len(ours) - 1))]:.3f} s, max {ours[-1]:.3f} s; "
        f"stock load call from local disk: median {statistics.median(stock):.3f} s; "
        f"ratio {statistics.median(ours) / statistics.median(stock):.1f}",
        flush=True,
    )


def large(chain: Chain, gib: float) -> bool:
    """Print memory and speed of staging a large adapter; return whether the bar holds."""
    assert chain.operator is not None
    size = int(gib * (1 << 30))
    make_large(chain.root / chain.namespace / "claim" / "large", size)
    pids = {
        "operator": chain.operator.process.pid,
        "sidecar": chain.sidecars["engine-0"].process.pid,
    }
    source = {"persistentVolumeClaim": {"claimName": "claim", "path": "large"}}
    spec = {
        "baseModel": "tiny/qwen3-dense",
        "poolRef": {"name": "pool"},
        "source": {**source, "pollIntervalSeconds": 0},
        "allowBaseMismatch": True,
    }
    with Peak(**pids) as peak:
        started = time.monotonic()
        chain._create("loraadapters", "LoRAAdapter", "large", spec)
        ready(chain, "large", 600)
        seconds = time.monotonic() - started
    growth = peak.growth()
    print(
        f"staging {gib:g} GiB: {size / MIB / seconds:.0f} MiB/s from apply to Ready; "
        + ", ".join(f"{name} +{mib:.0f} MiB at its peak" for name, mib in growth.items())
        + f" (bar {LIMIT_MIB} MiB)",
        flush=True,
    )
    return max(growth.values()) <= LIMIT_MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--skip-real", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorafleet-bench-", dir="/tmp") as name:
        directory = Path(name)
        with LocalCluster(directory / "cluster", quiet=True) as cluster:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted((ROOT / "crds").glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            if not options.skip_real:
                import tiny_models
                from real_chain import RealChain

                model = tiny_models.make_dense(directory / "model")
                real = RealChain(
                    cluster.kubeconfig, directory / "real", f"b-{secrets.token_hex(3)}", model
                )
                try:
                    real.start_vllm("engine-0", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1")
                    real.start_operator()
                    real.pool()
                    apply_to_ready(real, options.runs)
                finally:
                    real.stop()
            chain = Chain(cluster.kubeconfig, directory / "large", f"b-{secrets.token_hex(3)}")
            try:
                chain.arena_bytes = int((options.gib + 0.25) * (1 << 30))
                chain.start_engine("engine-0", 0)
                chain.start_operator()
                chain.pool()
                return 0 if large(chain, options.gib) else 1
            finally:
                chain.stop()


if __name__ == "__main__":
    sys.exit(main())
