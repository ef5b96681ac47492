"""How long a first request waits for its adapter: a real vLLM on the CPU with a tiny model.

    python bench/first_request.py [--adapters 20]

Each adapter is staged and of residency onDemand. Its first request waits until the sidecar has
loaded, proved and published it; beside it the same request once more, and one for a name that
nobody has. Both generate one token.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack")]

import httpx
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from real_engine import BASE, RealEngine, source, until
from sidecar_rig import Rig
from staging_client import stage
from tiny_models import make_dense


async def ask(client: httpx.AsyncClient, model: str) -> tuple[int, float]:
    """Return the status and the seconds of a request for one token."""
    body = {"model": model, "prompt": "t1", "max_tokens": 1, "temperature": 0.0}
    started = time.perf_counter()
    response = await client.post("/v1/completions", json=body, timeout=60)
    return response.status_code, time.perf_counter() - started


async def measure(root: Path, adapters: int) -> dict[str, list[float]]:
    """Return the seconds of first, repeated and refused requests."""
    volume = root / "volume"
    volume.mkdir()
    seconds: dict[str, list[float]] = {"first": [], "again": [], "unknown name": []}
    rig = Rig(volume, refresh_seconds=1.0)
    rig.engine = RealEngine(volume, make_dense(root / "model"), root / "vllm.log")  # type: ignore[assignment]
    async with rig:
        await until(rig, lambda inventory: inventory.health == pb.ENGINE_HEALTH_READY)
        async with httpx.AsyncClient(base_url=rig.engine.url, trust_env=False) as client:
            await ask(client, BASE)
            for number in range(adapters):
                name = f"team-a/{number}"
                content = source(root / f"adapter-{number}", name, number)
                staged, _ = await stage(rig.channel, content)
                await rig.load(staged.digest, name, residency="onDemand")
                for kind, model, expected in (
                    ("first", name, 200),
                    ("again", name, 200),
                    ("unknown name", f"{name}-not", 404),
                ):
                    status, took = await ask(client, model)
                    if status != expected:
                        raise SystemExit(f"{model} was answered {status}, expected {expected}")
                    seconds[kind].append(took)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        seconds = asyncio.run(measure(Path(folder), arguments.adapters))
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    for kind, values in seconds.items():
        print(f"{kind}: median {median[kind] * 1000:.0f} ms, most {max(values) * 1000:.0f} ms")
    print(f"first / again: {median['first'] / median['again']:.1f}")


if __name__ == "__main__":
    main()
