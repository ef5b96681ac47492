"""Slots after the engine slept, on one GPU with CUDA graphs: written again and proved, at both levels.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python tests/gpu/sleep_check.py

Prints a JSON line for each level; exit status 1 if a slot is not what was staged.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from paper_probe import start
from plugin_requests import load_for_step, ours
from slot_judge import judge
from slot_probe import differing, snapshot

LOADERS = {1: "direct", 2: "device"}


def step(probe: Any, lora_int_id: int, digest: str) -> None:
    """Let the engine answer with an adapter; its second token comes by a captured graph on a GPU."""
    from vllm import SamplingParams

    request = ours(probe.arena.volume, lora_int_id, digest, LOADERS[lora_int_id])
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    prompt = {"prompt_token_ids": [1, 5, 9, 42, 7]}
    probe.llm.generate(prompt, greedy, lora_request=request, use_tqdm=False)


def check(probe: Any, level: int) -> dict[str, Any]:
    """Let the engine sleep and wake; returns what its slots hold then."""
    expected = {}
    for lora_int_id, loader in LOADERS.items():
        _, digest = probe.adapter(f"level{level}-{loader}", rank=8, alpha=20 * lora_int_id)
        request = ours(probe.arena.volume, lora_int_id, digest, loader)
        probe.lora.add_adapter(request)
        expected[lora_int_id] = digest, load_for_step(probe.lora, request)
    manager, before = probe.manager, probe.residency.stats.refills
    for lora_int_id, (digest, _) in expected.items():
        step(probe, lora_int_id, digest)
    probe.llm.sleep(level=level)
    probe.llm.wake_up()
    wrong, verdicts = {}, {}
    for lora_int_id, (digest, slot) in expected.items():
        index = manager.lora_index_to_id.index(lora_int_id)
        wrong[lora_int_id] = differing(snapshot(manager, index), slot)
        step(probe, lora_int_id, digest)
        verdicts[lora_int_id] = judge(probe, lora_int_id, digest)
    refills = probe.residency.stats.refills - before
    probe.clear()
    return {
        "level": level,
        "refills": refills,
        "differing": wrong,
        "verdicts": verdicts,
        "right": not any(wrong.values()) and not any(verdicts.values()),
    }


def main() -> int:
    """Check both levels and print."""
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-sleep-", dir="/dev/shm"))
    probe = start(folder, enable_sleep_mode=True, enforce_eager=False)
    right = True
    for level in (1, 2):
        found = check(probe, level)
        right &= found["right"]
        print(json.dumps(found), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
