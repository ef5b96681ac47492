"""A trainer's push of a large adapter, and many small ones in a row.

One operator and one real API server on this machine, no engine: what is measured is the
trainer's side, and the way into the operator's disk. Beside it, in the same run, what a trainer
without it does first: `save_pretrained`'s file, written and synced. Loading is not in either figure.

    python bench/push.py [--mib 1024] [--pushes 500]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack")]

import torch
from kube_rest import KubeRest
from kubernetes import config, utils
from localcluster import LocalCluster
from localstack import LocalStack
from lorafleet.push import Fleet
from processes import free_port
from psutil import Process
from pushing import PUSH_RULES, account, token
from safetensors.torch import save_file

PLACE = {"name": "rl", "base_model": "tiny/simulated", "pool": "pool"}
CONFIG = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}


def state_of(mib: int) -> dict[str, Any]:
    """Return PEFT-shaped bfloat16 factors of rank 16 of `mib` MiB."""
    count = max(mib * 4, 20)
    elements = (mib << 20) // 2 // count
    made = {}
    for n in range(count // 2):
        module = f"base_model.model.model.layers.{n}.self_attn.q_proj"
        for side, shape in (("A", (16, elements // 16)), ("B", (elements // 16, 16))):
            made[f"{module}.lora_{side}.weight"] = torch.randn(shape).bfloat16()
    return made


def timed(work: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def large(fleet: Fleet, mib: int, folder: Path) -> dict[str, Any]:
    state = state_of(mib)
    size = sum(t.numel() * 2 for t in state.values())

    def save() -> None:
        save_file(state, folder / "adapter_model.safetensors", {"format": "pt"})
        with (folder / "adapter_model.safetensors").open("rb") as file:
            os.fsync(file.fileno())

    saved, _ = timed(save)
    (folder / "adapter_model.safetensors").unlink()
    copied, pending = timed(lambda: fleet.push_later(state, config=CONFIG, step=1, **PLACE))
    later, first = timed(pending.revision)
    changed = list(state)[: len(state) // 10]
    for name in changed:
        state[name] += 1
    copied_again, pending = timed(lambda: fleet.push_later(state, config=CONFIG, step=2, **PLACE))
    later_again, second = timed(pending.revision)
    return {
        "bytes": size,
        "in_step_seconds": copied,
        "in_step_seconds_again": copied_again,
        "until_operator_has_it_seconds": copied + later,
        "tenth_changed_seconds": copied_again + later_again,
        "tenth_changed_bytes_ratio": second.sent_bytes / first.sent_bytes,
        "save_and_sync_seconds": saved,
        "in_step_ratio": copied_again / saved,
    }


def many(fleet: Fleet, pushes: int) -> dict[str, Any]:
    state, process = state_of(2), Process()
    names, memory = list(state), []
    place = {**PLACE, "name": "many"}
    began = time.perf_counter()
    for step in range(pushes):
        for n in range(len(names) // 10):
            state[names[(step + n) % len(names)]] += 1
        fleet.push(state, config=CONFIG, step=step, **place)
        memory.append(process.memory_info().rss)
    return {
        "pushes": pushes,
        "seconds_each": (time.perf_counter() - began) / pushes,
        "growth_after_the_first_tenth_bytes": memory[-1] - memory[pushes // 10],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pushes", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorafleet-push-") as directory:
        root = Path(directory)
        with LocalCluster(root / "cluster", quiet=True) as cluster, LocalStack(root) as stack:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted((ROOT / "crds").glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            with KubeRest(cluster.kubeconfig) as kube:
                kube.create("/api/v1/namespaces", {"metadata": {"name": "bench"}})
                account(kube, "bench", "trainer", PUSH_RULES)
                text = token(kube, "bench", "trainer")
            address = f"127.0.0.1:{free_port()}"
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES="bench",
                LORAFLEET_PUSH_LISTEN=address,
                LORAFLEET_PUSH_DIR=str(root / "pushed"),
            )
            with Fleet(address, "bench", token=lambda: text) as fleet:
                print(json.dumps({"many": many(fleet, given.pushes)}, indent=1))
                print(json.dumps({"large": large(fleet, given.mib, root)}, indent=1))


if __name__ == "__main__":
    main()
