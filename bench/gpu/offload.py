"""The source paper's table: GPU memory by phase of a trainer that syncs its adapter into the engine.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/offload.py [--out FOLDER]

One engine, the same adapter three ways: tensors on the GPU as a trainer hands them over, kept there;
the same with the offload; `direct` from the arena. Writes offload.json. LORAFLEET_BENCH_SHAPE=dense
tries the same lines on a machine without a GPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerator
import device_memory
import inprocess
import record
import shapes
import torch
from lorafleet_vllm import residency as residency_module
from lorafleet_vllm.device_loader import DeviceModule
from lorafleet_vllm.direct import pair_of
from lorafleet_vllm.revision import read_revision
from staging import Staging
from vllm import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

BIG = 1
PROMPTS, PROMPT_TOKENS, TOKENS = (8, 512, 64) if accelerator.CUDA else (2, 16, 8)
TRAINED_TOKENS = 16384 if accelerator.CUDA else 64


@dataclass
class Phases:
    """One way's figures; bytes are above what the engine had allocated before the sync."""

    base: int = field(default_factory=device_memory.allocated)
    figures: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, work: Callable[[], Any]) -> None:
        """Run one phase: its seconds, its peak, and what is still allocated after it."""
        start = device_memory.allocated()
        with device_memory.peak(driver=False) as found:
            begin = time.perf_counter()
            work()
            accelerator.synchronize()
            seconds = time.perf_counter() - begin
        self.figures[name] = {
            "seconds": seconds,
            "peak_bytes": start - self.base + found.torch_bytes,
            "kept_bytes": device_memory.allocated() - self.base,
        }


def hand_over(probe: Any, staging: Staging) -> list[DeviceModule]:
    """Return the adapter's tensors on the GPU, each expert's copied by itself, as published."""
    volume = probe.residency.volume
    hex_digest = staging.staged["big"].digest.removeprefix("sha256:")
    revision = read_revision(volume.revision_directory(hex_digest))
    arena = probe.residency.arena.current()
    found = []
    for tensors in revision.modules:
        pair = pair_of(tensors, revision, arena)
        sides = []
        for side in (pair.a, pair.b):
            target = torch.empty(side.shape, dtype=side.dtype, device=probe.residency.device)
            parts = zip(target, side, strict=True) if side.dim() == 3 else [(target, side)]
            for to, come in parts:
                to.copy_(come)
            sides.append(target)
        found.append(DeviceModule(tensors.name, tensors.kind, *sides, tensors.scaling))
    return found


def sync_from_gpu(probe: Any, staging: Staging) -> None:
    """Sync as published: the trainer's tensors go in from the GPU."""
    request = inprocess.revision(staging, BIG, "big", "device")
    probe.residency.add(request, hand_over(probe, staging))


def generate(probe: Any, request: Any, tokens: int, **options: Any) -> None:
    """Decode for all prompts with the adapter."""
    parameters = SamplingParams(
        temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **options
    )
    limit = 500
    prompts = [
        {"prompt_token_ids": [1 + (place * 31 + row) % limit for place in range(PROMPT_TOKENS)]}
        for row in range(PROMPTS)
    ]
    probe.llm.generate(prompts, parameters, lora_request=request, use_tqdm=False)


def score(probe: Any, request: Any, shape: shapes.Shape) -> None:
    """Read all prompts with the adapter, and take the logarithms of their tokens' probabilities.

    The second is done beside the engine: vLLM's own prompt_logprobs do not work with LoRA.
    """
    generate(probe, request, 1, logprobs=1)
    device = "cuda" if accelerator.CUDA else "cpu"
    hidden = torch.randn(PROMPTS * PROMPT_TOKENS, shape.hidden, device=device).bfloat16()
    head = torch.randn(shape.hidden, shape.vocabulary, device=device).bfloat16()
    torch.log_softmax((hidden @ head).float(), dim=-1).max(dim=-1)


def train(shape: shapes.Shape) -> None:
    """Do what a trainer does for one projection: forward, backward, Adam on a LoRA pair."""
    device = "cuda" if accelerator.CUDA else "cpu"
    sizes = {"dtype": torch.bfloat16, "device": device}
    with torch.inference_mode(mode=False), torch.enable_grad():
        weight = torch.randn(shape.hidden, shape.hidden, **sizes)
        a = torch.randn(shape.hidden, shape.rank, requires_grad=True, **sizes)
        b = torch.zeros(shape.rank, shape.hidden, requires_grad=True, **sizes)
        adam = torch.optim.AdamW([a, b])
        hidden = torch.randn(TRAINED_TOKENS, shape.hidden, **sizes)
        for _ in range(4):
            out = hidden
            for _ in range(4):
                out = torch.tanh(out @ weight + out @ a @ b)
            out.float().square().mean().backward()
            adam.step()
            adam.zero_grad()


def measure(
    probe: Any, staging: Staging, shape: shapes.Shape, loader: str, sync: Callable[[], Any]
) -> dict[str, Any]:
    """Return the phases' figures for one way to sync, and unload again."""
    request = inprocess.revision(staging, BIG, "big", loader)
    phases = Phases()
    phases.run("sync", sync)
    phases.run("generation", lambda: generate(probe, request, TOKENS))
    phases.run("logprob", lambda: score(probe, request, shape))
    phases.run("training", lambda: train(shape))
    pinned = probe.residency.report()["pinned_host_bytes"]
    inprocess.clear(probe)
    if accelerator.CUDA:
        torch.cuda.empty_cache()
    return {**phases.figures, "pinned_host_bytes": pinned}


def table(ways: dict[str, Any]) -> str:
    """Return the table of one run, in Markdown."""
    phases = ("sync", "generation", "logprob", "training")
    lines = ["| peak above the engine, GiB | " + " | ".join(phases) + " | sync, s |"]
    lines.append("|---" * 6 + "|")
    for way, figures in ways.items():
        peaks = " | ".join(f"{figures[phase]['peak_bytes'] / 2**30:.2f}" for phase in phases)
        lines.append(f"| {way} | {peaks} | {figures['sync']['seconds']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the three ways in one engine and print the table."""
    name, shape = shapes.chosen()
    figures = record.opened("offload", name)
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-gpu-", dir="/dev/shm"))
    os.environ["LORAFLEET_OFFLOAD_BUDGET_BYTES"] = str(4 * shape.adapter_bytes)
    try:
        staging = Staging(folder / "volume", {"big": shape.adapter()})
        figures.say(f"staged {staging.size} bytes; starting the engine")
        probe, _ = inprocess.start(
            shape, staging, folder, **({"gpu_memory_utilization": 0.7} if accelerator.CUDA else {})
        )
        direct = inprocess.revision(staging, BIG, "big")
        measure(probe, staging, shape, "direct", lambda: inprocess.load_seconds(probe, direct))
        figures.say("warm")
        ways: dict[str, Any] = {}

        def note(way: str, loader: str, sync: Callable[[], Any]) -> None:
            ways[way] = measure(probe, staging, shape, loader, sync)
            figures.put(**{way: ways[way]})

        moved = residency_module.offload
        residency_module.offload = lambda *_: 0  # the tensors stay where they are
        note("without offload", "device", lambda: sync_from_gpu(probe, staging))
        residency_module.offload = moved
        note("with offload", "device", lambda: sync_from_gpu(probe, staging))
        note("direct", "direct", lambda: inprocess.load_seconds(probe, direct))
        experts = [module for module in shape.adapter() if module.kind == "experts"]
        figures.put(
            formula_bytes=shape.expert_bytes_by_formula,
            expert_bytes=sum(module.nbytes for module in experts),
            adapter_bytes=shape.adapter_bytes,
        )
        print(table(ways), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
