"""What is done in the workers in many short turns, so that steps of others run in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lorafleet.errors import EngineRejected

from lorafleet_vllm.proof_check import Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    AskWorkers = Callable[..., Awaitable[list[dict[str, Any]]]]

_PAUSE_SECONDS = 0.0005  # while the bus works
_LAYERS_AT_A_TIME = 4  # of a proof, between two steps
_TRIES = 3


async def bring_in(ask: AskWorkers, request: Any) -> None:
    """Load the adapter of `request` (a LoRARequest) in every worker, a slice at a time.

    Returns when all of them hold it, and its slot is complete where one was free. Raises
    EngineRejected with the first worker's line; the others may hold the adapter then.
    """
    lora_int_id = request.lora_int_id
    answers = await ask("lorafleet_begin", lora_int_id, request.lora_name, request.lora_path)
    while True:
        error = next((answer["error"] for answer in answers if answer["error"]), "")
        if error:
            raise EngineRejected(error)
        if all(answer["done"] for answer in answers):
            return
        if not any(answer["busy"] for answer in answers):
            await asyncio.sleep(_PAUSE_SECONDS)
        answers = await ask("lorafleet_progress", lora_int_id)


async def judge(ask: AskWorkers, request: Any, file: Path) -> tuple[int, str]:
    """Compare what every worker's slot holds with what `file` (revision.json) says.

    Returns how many modules were compared, and a line about the first that differs ("" if none).
    """
    try:
        verdict = await asyncio.to_thread(Verdict, file)
    except (OSError, ValueError, KeyError) as error:
        return 0, f"revision.json cannot be read: {error}"
    layers, position, again = 1, 0, _TRIES
    await bring_in(ask, request)  # it may have been evicted
    while position < layers and not verdict.line:
        span = (request.lora_int_id, position, position + _LAYERS_AT_A_TIME)
        evidence = await ask("lorafleet_evidence", *span)
        refused = next((each["error"] for each in evidence if "error" in each), "")
        if refused and again:
            again -= 1  # steps that ran in between may have evicted it
            await bring_in(ask, request)
            continue
        if refused:
            return 0, refused
        verdict.add(evidence)
        layers = max(each["layers"] for each in evidence)
        position += _LAYERS_AT_A_TIME
    if not verdict.line:
        verdict.finish()
    return verdict.modules, verdict.line
