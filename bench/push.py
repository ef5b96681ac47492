"""A trainer's push of a large adapter beside what it does without: a shared disk and a load call.

    python bench/push.py [--gib 1] [--save]

One PEFT model whose LoRA factors have `gib` GiB (bfloat16, rank 512; base weights of chance, so small
that they cost little), and in one run, one after the other:

- stock: `save_pretrained` in the training step, into a folder that the engine reads (this machine's
  disk, from whose cache it reads: no shared disk is faster), then `/v1/load_lora_adapter` of a vLLM
  without the plugin, in place the second time;
- lorafleet: `push_later` in the training step, then operator, sidecar and a vLLM with the plugin.

Each for a first revision, for one of which a tenth of the tensors changed, and for one of which all did, as
after each step of RL: seconds in the training step, and from its begin until the load call answered or the
adapter is Ready, and until the engine answered with it. Then one push in the foreground with all changed: GB/s until the operator has it on
its disk, and how the trainer's memory grew at most. Ends with 1 if by more than MOST_MIB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack"), str(ROOT / "bench")]

import httpx
import torch
from chain import Peak
from kubernetes import config, utils
from localcluster import LocalCluster
from localstack import EngineSpec, LocalStack
from operator_chain import BASE, Chain
from peft import LoraConfig, get_peft_model
from push_rows import Row, compare
from push_training import Tenths
from pushing import taking_pushes
from real_chain import ONE_THREAD
from tiny_models import VOCABULARY, save_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from localstack import Engine
    from lorafleet.push import Fleet
    from lorafleet.push.background import Pending

RESULTS = Path(__file__).parent / "results" / "push.json"
MOST_MIB = 256
RANK = 512
LAYER_BYTES = 16 << 20
"""Of factors of rank 512 for all linear modules of a layer of WIDTHS."""
WIDTHS = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "head_dim": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


class Training:
    """The model that is trained, and its folder for engines."""

    def __init__(self, root: Path, gib: float) -> None:
        shape = Qwen3Config(num_hidden_layers=max(1, round(gib * 2**30 / LAYER_BYTES)), **WIDTHS)
        shape.architectures, shape.dtype = ["Qwen3ForCausalLM"], "bfloat16"
        self.base = root / "base"
        shape.save_pretrained(self.base)
        save_tokenizer(self.base)
        with torch.device("meta"):
            base = Qwen3ForCausalLM(shape).to(torch.bfloat16)
        lora = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear")
        # Factors in the base model's type, as a policy that is trained in bfloat16 has them.
        self.model = get_peft_model(base.to_empty(device="cpu"), lora, autocast_adapter_dtype=False)
        self.tenths = Tenths(self.model)
        named = self.model.named_parameters()
        self.bytes = sum(each.nbytes for name, each in named if "lora_" in name)


def engine_of(name: str, training: Training, **env: str) -> EngineSpec:
    """Return the vLLM that both ways have, but for `env`."""
    arguments = ("--load-format", "dummy", "--max-num-seqs", "4")
    return EngineSpec(
        name,
        training.base,
        BASE,
        max_lora_rank=RANK,
        max_model_len=256,
        arguments=arguments,
        env={**ONE_THREAD, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **env},
    )


def answer(engine: Engine, model: str) -> None:
    body = {"model": model, "prompt": "t5 t17 t200", "max_tokens": 1}
    httpx.post(f"{engine.url}/v1/completions", json=body, timeout=300).raise_for_status()


def timed(
    way: str,
    training: Training,
    in_step: Callable[[], Any],
    serve: Callable[[Any], int],
    engine: Engine,
    model: str,
) -> list[Row]:
    """Bring revisions, by what is done in the training step and what then; return their rows."""
    found = []
    for what, tenths in (("first", ()), ("a tenth changed", (1,)), ("all changed", range(10))):
        for tenth in tenths:
            training.tenths.change(tenth)
        began = time.perf_counter()
        begun = in_step()
        stepped = time.perf_counter() - began
        moved = serve(begun)
        served = time.perf_counter() - began
        answer(engine, model)
        found.append(Row(way, what, stepped, served, time.perf_counter() - began, moved))
        print(found[-1], flush=True)
    return found


def stock(root: Path, training: Training) -> list[Row]:
    """Return the rows of save_pretrained and vLLM's load call."""
    folder = root / "saved"

    def load(_: object) -> int:
        body = {"lora_name": "policy", "lora_path": str(folder), "load_inplace": True}
        url = f"{engine.url}/v1/load_lora_adapter"
        httpx.post(url, json=body, timeout=600).raise_for_status()
        return (folder / "adapter_model.safetensors").stat().st_size

    with LocalStack(root / "stock") as stack:
        engine = stack.start_engine(engine_of("stock", training, VLLM_PLUGINS=""))
        engine.wait()
        answer(engine, BASE)
        save = lambda: training.model.save_pretrained(folder)  # noqa: E731
        return timed("stock", training, save, load, engine, "policy")


def pushed(root: Path, kubeconfig: Path, training: Training) -> tuple[list[Row], dict[str, float]]:
    """Return the rows of push_later, the bytes of it that went on to the engine with a tenth changed
    over those of the first, and the figures of a push in the foreground."""
    chain = Chain(kubeconfig, root / "chain", f"b-{secrets.token_hex(3)}")
    try:
        engine = chain.engines["ours"] = chain.stack.start_engine(engine_of("ours", training))
        uid = chain.pods.create("ours", engine.address, {"app": "vllm"})
        # Room for what is served, what comes, and one of the history.
        arena = int(3.25 * training.bytes) + (64 << 20)
        sidecar = chain.stack.start_sidecar(engine, uid, arena_bytes=arena)
        sidecar.wait()
        engine.wait()
        answer(engine, BASE)
        with taking_pushes(chain, root / "disk") as fleet:
            chain.pool()
            state = lambda: chain.condition("pool", "EnginesReady", "enginepools")[0]  # noqa: E731
            eventually(lambda: state() == "True", 60, "the pool has no ready engine")
            place = {"name": "policy", "base_model": BASE, "pool": "pool"}
            push = lambda: fleet.push_later(training.model, **place)  # noqa: E731
            staged = [0.0]

            def serve(pending: Pending) -> int:
                sent = pending.wait(timeout=600).sent_bytes
                staged.append(
                    value_of(sidecar.metrics_url, "lorafleet_sidecar_received_bytes_total")
                )
                return sent

            name = f"{chain.namespace}/policy"
            rows = timed("lorafleet", training, push, serve, engine, name)
            ratio = (staged[2] - staged[1]) / staged[1]
            print(f"of them to the engine, a tenth changed / first: {ratio:.2f}", flush=True)
            return rows, {"to_engine": ratio, **foreground(fleet, training, place)}
    finally:
        chain.stop()


def value_of(url: str, name: str) -> float:
    """Return the one sample of that name."""
    lines = httpx.get(url, timeout=60).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def foreground(fleet: Fleet, training: Training, place: dict[str, str]) -> dict[str, float]:
    """Push with all tensors changed and return what that says."""
    for turn in range(10):
        training.tenths.change(turn)
    gc.collect()
    with Peak(trainer=os.getpid()) as peak:
        began = time.perf_counter()
        made = fleet.push(training.model, **place)
        seconds = time.perf_counter() - began
    assert made is not None
    found = {
        "seconds": seconds,
        "gigabytes_per_second": made.sent_bytes / seconds / 1e9,
        "trainer_grew_mib": peak.growth()["trainer"],
    }
    print(
        f"foreground, all changed: {seconds:.2f} s until the operator has it, "
        f"{found['gigabytes_per_second']:.2f} GB/s; the trainer grew by "
        f"{found['trainer_grew_mib']:.0f} MiB at its peak (bar {MOST_MIB})",
        flush=True,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--save", action="store_true", help=f"put the figures into {RESULTS}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with us
    with tempfile.TemporaryDirectory(prefix="lorafleet-push-") as directory:
        root = Path(directory)
        training = Training(root, given.gib)
        print(f"{training.bytes / 2**30:.3f} GiB of factors", flush=True)
        rows = stock(root, training)
        with LocalCluster(root / "cluster", quiet=True) as cluster:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted((ROOT / "crds").glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            ours, push = pushed(root, cluster.kubeconfig, training)
        rows += ours
        ratios = compare(rows)
    if given.save:
        found = {"bytes": training.bytes, "rows": [asdict(row) for row in rows]}
        text = json.dumps({**found, "ratios": ratios, "foreground": push}, indent=1)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"{text}\n")
    return int(push["trainer_grew_mib"] > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
