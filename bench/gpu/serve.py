"""Seven tenants decode through the real OpenAI server while one adapter of 6.29 GiB comes and goes.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/serve.py [--out FOLDER]

Prints the tenants' token gaps, quiet and under churn by direct, device and stock vLLM, and writes
serve.json (docs/gpu.md says what each figure is). Needs about 135 GiB of GPU memory.
LORAFLEET_BENCH_SHAPE=dense tries the same lines on a machine without a GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerator
import gaps
import record
import shapes
from server import Server, write_model
from staging import Staging

if TYPE_CHECKING:
    from collections.abc import Callable

TENANTS = 7
_GPU_OPTIONS = {
    "kv_cache_memory_bytes": 4 << 30,
    # Eight requests decode, a ninth comes and goes: graphs of other sizes only take time to make.
    "compilation_config": json.dumps({"cudagraph_capture_sizes": [1, 8, 16]}),
}
TOKENS = 16  # of the churning adapter's requests
SECONDS, STOCK_SECONDS = (8.0, 20.0) if accelerator.CUDA else (2.0, 2.0)
MAX_LENGTH = 4096 if accelerator.CUDA else 512


@dataclass
class Bench:
    """A server whose tenants are decoding, and what was found in each window so far."""

    server: Server
    staging: Staging
    record: record.Record
    client: subprocess.Popen[str] | None = None
    windows: dict[str, Any] = field(default_factory=dict)

    def window(self, name: str, seconds: float, turn: Callable[[], float | None]) -> None:
        """Repeat `turn` for `seconds` and record the tenants' gaps; `turn` may return a load's."""
        time.sleep(1.0 if accelerator.CUDA else 0.2)
        self._moments()
        loads = []
        start = time.monotonic()
        while time.monotonic() < start + seconds:
            found = turn()
            if found is not None:
                loads.append(found)
        time.sleep(0.2)  # the last gap ends in it
        inside = [gap for request in self._moments() for gap in gaps.gaps(request)]
        self.windows[name] = gaps.summary(inside)
        if loads:
            self.windows[name] |= {"loads": len(loads), "load_s": gaps.median(loads)}
        self.record.put(windows=self.windows)

    def _moments(self) -> list[list[float]]:
        """Return when the tenants' tokens came since this was asked last."""
        client = self.client
        assert client is not None
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        moments: list[list[float]] = json.loads(client.stdout.readline())
        return moments

    def load(self, name: str, loader: str, *, verify: bool = False) -> tuple[int, float]:
        """Load and publish the large adapter; returns its id and the seconds until it may be asked."""
        start = time.monotonic()
        digest = self.staging.staged["big"].digest
        answer = self.server.control("load", served_name=name, digest=digest, loader=loader)
        lora_int_id: int = answer["lora_int_id"]
        if verify:
            self.server.control("verify", lora_int_id=lora_int_id)
        self.server.control("publish", served_name=name, lora_int_id=lora_int_id)
        return lora_int_id, time.monotonic() - start

    def unload(self, name: str, lora_int_id: int) -> None:
        """Withdraw and unload it."""
        self.server.control("unpublish", served_name=name)
        self.server.control("unload", lora_int_id=lora_int_id)

    def churn(self, loader: str, *, verify: bool = False) -> float:
        """Load, publish, ask once, unload; returns the seconds of the load."""
        lora_int_id, seconds = self.load("t/big", loader, verify=verify)
        self.server.complete("t/big", TOKENS)
        self.unload("t/big", lora_int_id)
        return seconds

    def stock_churn(self, folder: Path) -> float:
        """Do the same with vLLM's own calls."""
        start = time.monotonic()
        self.server.api("/v1/load_lora_adapter", lora_name="stock", lora_path=str(folder))
        seconds = time.monotonic() - start
        self.server.complete("stock", TOKENS)
        self.server.api("/v1/unload_lora_adapter", lora_name="stock")
        return seconds


def start_tenants(bench: Bench) -> subprocess.Popen[str]:
    """Load the tenants' adapters and start the process that streams for them."""
    names = [f"t/tenant{index}" for index in range(TENANTS)]
    for index, name in enumerate(names):
        digest = bench.staging.staged[f"tenant{index}"].digest
        answer = bench.server.control("load", served_name=name, digest=digest, loader="direct")
        bench.server.control("publish", served_name=name, lora_int_id=answer["lora_int_id"])
        bench.server.complete(name, 4)
    command = [sys.executable, str(Path(__file__).with_name("stream_client.py"))]
    command += [str(bench.server.port), str(MAX_LENGTH - 64), *names]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_windows(bench: Bench, folder: Path) -> None:
    """Let everything happen that is compared."""
    for loader in ("direct", "direct"):  # the first compiles what it meets
        bench.churn(loader)
    bench.window("quiet", SECONDS, lambda: time.sleep(0.1))
    big, _ = bench.load("t/big", "direct")

    def ask() -> None:
        bench.server.complete("t/big", TOKENS)
        time.sleep(0.2)

    bench.window("quiet with requests", SECONDS, ask)
    other, _ = bench.load("t/other", "direct")
    names = ["t/big", "t/other"]

    def rebuild() -> float:
        names.reverse()  # whoever is asked now was pushed out by the one before
        start = time.monotonic()
        bench.server.complete(names[0], TOKENS)
        return time.monotonic() - start

    bench.window("direct rebuilds", SECONDS, rebuild)
    bench.unload("t/big", big)
    bench.unload("t/other", other)
    bench.window("direct", SECONDS, lambda: bench.churn("direct"))
    bench.window("direct with proof", SECONDS, lambda: bench.churn("direct", verify=True))
    bench.window("stock", STOCK_SECONDS, lambda: bench.stock_churn(folder))
    bench.window("device", SECONDS, lambda: bench.churn("device"))
    bench.window("quiet again", SECONDS / 2, lambda: time.sleep(0.1))


def table(found: dict[str, Any], base: str = "quiet with requests") -> str:
    """Return the table of one run, in Markdown."""
    lines = [
        "| | p50, ms | p99, ms | / quiet | longest, ms | loads | load, s |",
        "|---" * 7 + "|",
    ]
    for name, each in found.items():
        ratio = each["p99_ms"] / found[base]["p99_ms"]
        load = f"{each['loads']} | {each['load_s']:.3f}" if "loads" in each else " | "
        lines.append(
            f"| {name} | {each['p50_ms']:.2f} | {each['p99_ms']:.2f} | {ratio:.3f} "
            f"| {each['max_ms']:.1f} | {load} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run everything and print the table."""
    name, shape = shapes.chosen()
    figures = record.opened("serve", name)
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-gpu-", dir="/dev/shm"))
    try:
        small = shape.adapter(8, mlp=False)
        adapters = {f"tenant{index}": small for index in range(TENANTS)} | {"big": shape.adapter()}
        staging = Staging(folder / "volume", adapters)
        files = staging.write_peft("big", folder / "stock")
        model = write_model(shape, folder / "model")
        figures.say(f"staged {staging.size} bytes; starting the server")
        log = figures.path.with_name("serve-vllm.log")
        with Server(model, staging.volume, _options(shape), log) as server:
            bench = Bench(server, staging, figures)
            bench.client = start_tenants(bench)
            try:
                run_windows(bench, files)
            finally:
                bench.client.kill()
                bench.client.wait()
            figures.put(workers=server.state()["workers"])
            figures.put(**_headline(bench.windows))
            print(table(bench.windows), flush=True)
    finally:
        shutil.rmtree(folder)


def _headline(found: dict[str, Any]) -> dict[str, Any]:
    p99 = {name: each["p99_ms"] for name, each in found.items()}
    quiet = p99["quiet with requests"]
    return {
        "p99_gap_ms_silent": p99["quiet"],
        "p99_gap_ms_quiet": quiet,
        "p99_gap_ms_direct": p99["direct"],
        "p99_gap_ms_device": p99["device"],
        "p99_gap_ms_stock": p99["stock"],
        "p99_over_quiet": {name: each / quiet for name, each in p99.items()},
    }


def _options(shape: shapes.Shape) -> dict[str, Any]:
    return {
        "load_format": "dummy",
        "enable_lora": True,
        "max_loras": TENANTS + 1,
        "max_cpu_loras": TENANTS + 1,
        "max_lora_rank": shape.rank,
        "max_model_len": MAX_LENGTH,
        "max_num_seqs": 16,
        "dtype": "bfloat16",
        "no_enable_prefix_caching": True,
        "enforce_eager": not accelerator.CUDA,
        "disable_uvicorn_access_log": True,
        **(_GPU_OPTIONS if accelerator.CUDA else {}),
    }


if __name__ == "__main__":
    main()
