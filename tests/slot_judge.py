"""The proof of a slot without an API server: what one worker shows, judged against the image."""

from __future__ import annotations

import json
from typing import Any


def judge(engine: Any, lora_int_id: int, digest: str) -> str:
    """Return the verdict's line over the live worker of an in-process engine; empty: proved."""
    from lorafleet_vllm.proof_check import Verdict
    from lorafleet_vllm.worker_calls import lorafleet_evidence

    folder = engine.arena.volume / "revisions" / digest.removeprefix("sha256:")
    verdict = Verdict(folder / "revision.json")
    layers, position = 1, 0
    while position < layers:
        evidence = json.loads(
            lorafleet_evidence(engine.worker, lora_int_id, position, position + 3)
        )
        if "error" in evidence:
            return str(evidence["error"])
        verdict.add([evidence])
        layers, position = evidence["layers"], position + 3
    verdict.finish()
    return verdict.line
