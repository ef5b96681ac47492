"""The checks that an engine must pass to get an adapter, whatever else it carries.

Each check looks at facts that no other adapter changes and returns None or a Refusal. They run
in the order of `FILTERS`; the first refusal is told. What an engine's own profile refuses of the
content (modules, shapes, dtype, flags) is preflight's finding and comes with the demand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth

if TYPE_CHECKING:
    from .demands import AdapterDemand
    from .engines import EngineSnapshot


@dataclass(frozen=True)
class Refusal:
    """Why an engine does not get an adapter: a reason for programs, a line for people."""

    reason: Reason
    text: str


Filter = Callable[["AdapterDemand", "EngineSnapshot", bool], Refusal | None]


def filter_refusal(adapter: AdapterDemand, engine: EngineSnapshot, *, held: bool) -> Refusal | None:
    """Return the first filter's refusal, None if the engine could take the adapter.

    `held`: the engine has the adapter, or was chosen for it before.
    """
    for check in FILTERS:
        refusal = check(adapter, engine, held)
        if refusal:
            return refusal
    return None


def _healthy(_: AdapterDemand, engine: EngineSnapshot, __: bool) -> Refusal | None:
    if engine.healthy:
        return None
    words = {
        EngineHealth.UNREACHABLE: "sidecar does not answer",
        EngineHealth.STARTING: "vLLM is starting",
        EngineHealth.REFUSED: "takes no adapters",
    }[engine.health]
    text = f"{words}: {engine.health_message}" if engine.health_message else words
    return Refusal(Reason.NO_MATCHING_ENGINES, text)


def _same_base(adapter: AdapterDemand, engine: EngineSnapshot, _: bool) -> Refusal | None:
    if not engine.base_models or not adapter.base_model:
        return None
    if adapter.base_model in engine.base_models:
        return None
    text = f"serves {engine.base_models[0]}, the adapter wants {adapter.base_model}"
    return Refusal(Reason.BASE_MODEL_MISMATCH, text)


def _rank_fits(adapter: AdapterDemand, engine: EngineSnapshot, _: bool) -> Refusal | None:
    if not engine.max_lora_rank or adapter.rank is None or adapter.rank <= engine.max_lora_rank:
        return None
    text = f"LoRA rank {adapter.rank} is greater than max_lora_rank {engine.max_lora_rank}"
    return Refusal(Reason.RANK_TOO_HIGH, text)


def _plugin_for_residency(
    adapter: AdapterDemand, engine: EngineSnapshot, _: bool
) -> Refusal | None:
    if adapter.reserved and engine.health is EngineHealth.STOCK:
        word = "pinned" if adapter.pinned else f"residency {adapter.residency}"
        return Refusal(Reason.PLUGIN_INACTIVE, f"{word} needs the plugin, which is not live")
    return None


def _fits_at_all(adapter: AdapterDemand, engine: EngineSnapshot, _: bool) -> Refusal | None:
    if adapter.size_bytes is None or adapter.size_bytes <= engine.capacity_bytes:
        return None
    text = f"needs {mebibytes(adapter.size_bytes)}, may use {mebibytes(engine.capacity_bytes)}"
    return Refusal(Reason.TOO_LARGE, text)


def _stays(_: AdapterDemand, engine: EngineSnapshot, __: bool) -> Refusal | None:
    if engine.leaving:
        return Refusal(Reason.NO_MATCHING_ENGINES, "is being drained")
    return None


def _not_cordoned(_: AdapterDemand, engine: EngineSnapshot, held: bool) -> Refusal | None:
    if engine.cordoned and not held:
        return Refusal(Reason.NO_MATCHING_ENGINES, "is cordoned")
    return None


FILTERS: Final[tuple[Filter, ...]] = (
    _healthy,  # first: nothing else is known of an engine that does not answer
    _same_base,
    _rank_fits,
    _plugin_for_residency,
    _fits_at_all,
    _stays,
    _not_cordoned,  # last: the lasting reasons are more use to a person
)


def mebibytes(size: int) -> str:
    """Return `size` bytes for people, rounded up to a tenth of a MiB."""
    tenths = -(-size * 10 // (1 << 20))
    return f"{tenths // 10}.{tenths % 10} MiB"
