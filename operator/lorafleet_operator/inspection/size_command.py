"""The verb `lorafleet size`: its options, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet.arguments import whole
from lorafleet.peft_config import AdapterConfig

from lorafleet_operator.inspection.size import adapter_size, expected_header, slot_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from lorafleet.profile import EngineProfile

MIB = 1 << 20


def add_verb(verbs: Any, add_engine_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the verb to a parser's `verbs`."""
    size = verbs.add_parser(
        "size", help="what LoRA slots and arena take, before there is an engine"
    )
    add_engine_options(size)
    size.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE",
        help="an adapter_config.json: what its adapter will take; may be given several times",
    )  # fmt: skip
    size.add_argument(
        "--adapters",
        type=whole(1),
        default=1,
        metavar="N",
        help="how many of each --config an engine has",
    )
    size.add_argument(
        "--history", type=whole(0), default=2, metavar="N",
        help="earlier revisions that stay staged for a rollback (spec.revisionHistoryLimit)",
    )  # fmt: skip


def figures(
    profile: EngineProfile, configs: list[Path], adapters: int, history: int
) -> dict[str, Any]:
    """Return the figures in bytes. Raises LorafleetError, UnknownModel, OSError."""
    slot = slot_bytes(profile)
    sizes = {}
    for path in configs:
        text = path.read_bytes()
        config = AdapterConfig.parse(text, adapter=path.name)
        header = expected_header(config, text, profile)
        sizes[str(path)] = adapter_size(header, config, profile, path.name)
    each = sum(size.extent_bytes for size in sizes.values())
    largest = max((size.extent_bytes for size in sizes.values()), default=0)
    return {
        "slots": {
            "count": profile.max_loras,
            "rank": profile.max_lora_rank,
            "slotBytes": slot,
            "bytes": slot * profile.max_loras,
            "perGpuAtLeast": slot * profile.max_loras // profile.tensor_parallel_size,
        },
        "adapters": {
            path: {
                "rank": size.rank,
                "modules": size.modules,
                "weightBytes": size.weight_bytes,
                "extentBytes": size.extent_bytes,
            }
            for path, size in sizes.items()
        },
        "arena": {
            "servedBytes": adapters * each,
            "historyBytes": adapters * each * history,
            "arrivingBytes": largest,
            "bytes": adapters * each * (1 + history) + largest,
        },
    }


def as_text(found: dict[str, Any]) -> str:
    """Return the figures for people."""
    slots, arena = found["slots"], found["arena"]
    lines = [
        f"slots    {slots['count']} of rank {slots['rank']}: {_mib(slots['bytes'])} of device memory, "
        f"{_mib(slots['slotBytes'])} each"
    ]
    if slots["perGpuAtLeast"] < slots["bytes"]:
        lines.append(f"         on each GPU between {_mib(slots['perGpuAtLeast'])} and that")
    for path, size in found["adapters"].items():
        lines.append(
            f"adapter  {path}: rank {size['rank']}, {size['modules']} modules, "
            f"{_mib(size['weightBytes'])} of weights, {_mib(size['extentBytes'])} of the arena"
        )
    if found["adapters"]:
        lines.append(
            f"arena    LORAFLEET_ARENA_BYTES={-(-arena['bytes'] // MIB)}Mi: {_mib(arena['servedBytes'])} "
            f"served, {_mib(arena['historyBytes'])} for rollbacks, {_mib(arena['arrivingBytes'])} "
            "for one that arrives"
        )
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
