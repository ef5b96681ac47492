"""What an engine's own profile refuses of the content: modules, dtype, flags, rank, base model.

The refusals are preflight's own, of real files; placement tells them of the engine, and of no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from format_cases import CASES, Source, engine_of, plan, read_source
from lorafleet.errors import LorafleetError
from lorafleet.header import parse_header
from lorafleet.profile import EngineProfile
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.content_conditions import refusals
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.placement import AdapterDemand, EngineSnapshot, Policy
from lorafleet_operator.placement import plan as placed
from lorafleet_operator.report import report
from operator_builders import adapter, pool

Change = Callable[[EngineProfile], EngineProfile]


def quantised(source: Source) -> Source:
    """The same adapter with numbers that are no floating-point ones."""
    raw = (CASES / "d01-plain-bf16" / "adapter_model.safetensors").read_bytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].replace(b'"BF16"', b'"I16"')
    return replace(source, header=parse_header(text, len(source.data)))


CONTENT: dict[str, tuple[str, Change, str]] = {
    "modules": (
        "d01-plain-bf16",
        lambda p: replace(p, modules=tuple(m for m in p.modules if "o_proj" not in m.name)),
        "2 of 14 modules do not exist in the engine (first: model.layers.0.self_attn.o_proj)",
    ),
    "rank": (
        "d10-rank-over-max",
        lambda p: p,
        "LoRA rank 16 is greater than max_lora_rank 8",
    ),
    "base model": (
        "d59-other-base-same-shapes",
        lambda p: p,
        "adapter was trained for other-org/some-other-7b, engine serves tiny/qwen3-dense",
    ),
    "flags": (
        "m01-per-expert",
        lambda p: replace(p, flags=("enable_moe_shared_loras",)),
        "lora_B differs between experts, but the engine runs with enable_moe_shared_loras",
    ),
    "dtype": ("quantised", lambda p: p, "has dtype I16, expected one of"),
}


def refusal(case: str, change: Change) -> str:
    """Return preflight's line, "" if the engine takes the content."""
    source = read_source(CASES / ("d01-plain-bf16" if case == "quantised" else case))
    try:
        plan(quantised(source) if case == "quantised" else source, change(engine_of(case)))
    except LorafleetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("filter_", CONTENT)
def test_what_a_profile_refuses_is_told_of_its_engine(filter_: str) -> None:
    case, change, text = CONTENT[filter_]
    found = refusal(case, change)
    assert text in found
    room = {"arena_limit_bytes": 64 << 20, "arena_largest_free_bytes": 64 << 20, "max_loras": 2}
    engines = [EngineSnapshot(f"p-{number}", **room) for number in range(2)]
    demand = AdapterDemand("t/a", policy=Policy.SPREAD, size_bytes=1, refused={"p-0": found})
    result = placed([demand], engines)
    assert result.assignments == {"t/a": ("p-1",)}
    line, other = result.why["t/a"].engines
    assert (str(line), line.reason) == (f"refused: {found}", Reason.ENGINE_REJECTED)
    assert str(other) == "chosen: emptiest engine with room (0 adapters)"
    alone = placed([demand], engines[:1])
    (only,) = alone.why["t/a"].engines
    assert str(only).startswith("chosen: emptiest engine with room")
    assert str(only).endswith(f"though it refuses the content: {found}")


def test_the_status_tells_the_most_frequent_refusals_and_some_of_their_pods() -> None:
    facts = Facts(adapter(), "2026-01-01T00:00:00Z", pool=pool())
    refused = {f"a-{n:02}": "no module" for n in range(12)} | {"b": "rank\n too high"}
    facts.placed = Placed(refused=refused | {f"c-{n}": f"another {n}" for n in range(5)})
    first, second, *others = refusals(facts)
    assert (first.message, first.engines, first.pods[-1]) == ("no module", 12, "a-09")
    assert second.message == "another 0"
    assert len(others) == 2
    said = report(facts, datetime(2026, 1, 2, tzinfo=UTC)).status
    assert said.refusals == refusals(facts)
