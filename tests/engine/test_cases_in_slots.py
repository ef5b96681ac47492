"""Every handed case that loads, staged by the real chain, in the LoRA slots of a real vLLM."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from dense_case import ONLY_THE_COMMAND, manifest
from dense_cases import CASES
from format_cases import profile
from lorafleet_operator.inspection.offline_profile import offline_profile
from moe_cases import CASES as MOE_CASES
from plugin_requests import load_for_step, ours
from slot_updates import slot_factors
from staged_cases import LOADED, NOT_BFLOAT16, differences, engine_of, stage_case, stage_path
from staging_server import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dense_case import DenseCase
    from staged_cases import Factors

ARENA_BYTES = 64 << 20
ROUNDED_BY_SCALING = {"m08-moe-rslora"}
"""Cases whose scaling is no power of two: the engine rounds the scaled B once."""


@pytest.fixture(scope="module", params=["dense", "moe"])
def engine(request: pytest.FixtureRequest, in_process: Callable[[str], Any]) -> Iterator[Any]:
    started = in_process(request.param)
    started.model = request.param
    yield started
    started.clear()
    from vllm.distributed import cleanup_dist_env_and_memory

    # vLLM makes the group of experts with the others or never: the next engine makes its own.
    cleanup_dist_env_and_memory()


def cases_of(model: str) -> list[tuple[str, str]]:
    return [(case, part) for case, part in LOADED if engine_of(case) == model]


def staged(engine: Any, case: str, part: str, claims: Path) -> str:
    """Stage a case into the engine's own volume, through a sidecar that ends with this call."""

    async def run() -> str:
        volume = engine.arena.volume
        wanted = profile(f"qwen3-{engine.model}")
        async with serving(volume, ARENA_BYTES, profile=lambda: wanted) as sidecar:
            return (await stage_case(sidecar, claims, case, part)).digest

    return asyncio.run(run())


def test_the_offline_profile_is_what_the_engine_reports(engine: Any, models: Path) -> None:
    from lorafleet_vllm.worker_profile import read_profile

    live = read_profile(engine.llm.llm_engine.vllm_config, engine.residency)
    offline = offline_profile(
        models / engine.model,
        base_model=live.base_model,
        aliases=live.base_model_aliases,
        max_lora_rank=live.max_lora_rank,
        max_loras=live.max_loras,
        max_cpu_loras=live.max_cpu_loras,
    )
    assert set(offline.modules) == set(live.modules)
    assert replace(offline, modules=live.modules, plugin_version=live.plugin_version) == live


def test_every_case_computes_the_expected_updates_in_its_slot(engine: Any, tmp_path: Path) -> None:
    wrong: dict[str, list[str]] = {}
    cases = cases_of(engine.model)
    for number, (case, part) in enumerate(cases, start=1):
        digest = staged(engine, case, part, tmp_path)
        slot = load_for_step(engine.lora, ours(engine.arena.volume, number, digest))
        rounded = int(case in NOT_BFLOAT16)
        again = rounded + int(case in ROUNDED_BY_SCALING)
        found = slot_factors(slot)
        wrong[f"{case} {part}"] = list(
            differences(found, case, part, a_rounded=rounded, b_rounded=again)
        )
        assert engine.lora.remove_adapter(number)
    assert {case: lines for case, lines in wrong.items() if lines} == {}
    assert len(wrong) == len(cases) == {"dense": 27, "moe": 8}[engine.model]
    assert engine.residency.stats.loads == len(cases)


def rounded(values: Any) -> Any:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def staged_dense(engine: Any, case: DenseCase, claims: Path, name: str) -> str:
    """Stage an adapter of `dense_cases`; return its digest."""
    folder = claims / "team-a" / "cases" / name
    folder.mkdir(parents=True)
    case.write(folder)

    async def run() -> str:
        volume = engine.arena.volume
        async with serving(volume, ARENA_BYTES, profile=lambda: profile("qwen3-dense")) as sidecar:
            path = f"{name}/{case.path}".rstrip("/")
            return (await stage_path(sidecar, claims, path, **manifest(case))).digest

    return asyncio.run(run())


@pytest.mark.parametrize("engine", ["dense"], indirect=True)
def test_other_dense_adapters_lie_in_their_slot_as_their_trainers_meant(
    engine: Any, tmp_path: Path
) -> None:
    wrong = []
    cases = {
        name: case
        for name, case in CASES.items()
        if case.updates and not case.warnings and name not in ONLY_THE_COMMAND
    }
    digests: dict[str, int] = {}
    for number, (name, case) in enumerate(cases.items(), start=1000):
        digest = staged_dense(engine, case, tmp_path, str(number))
        if digest in digests:  # the same content in another dress
            continue
        digests[digest] = number
        found = slot_factors(load_for_step(engine.lora, ours(engine.arena.volume, number, digest)))
        wrong += [f"{name}: {module}" for module in unequal(found, case.updates)]
        assert engine.lora.remove_adapter(number)
    assert wrong == []
    assert len(digests) > 10


def unequal(found: Mapping[str, Factors], updates: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules whose slots are not (A, scaling * B) of `updates`, to the last bit."""
    yield from sorted({m for m, factors in found.items() if len(factors.a)} ^ set(updates))
    for module, (a, b, scaling) in updates.items():
        scaled = rounded(rounded(b) * np.float32(scaling))
        slot = found[module]
        if not (np.array_equal(slot.a, rounded(a)) and np.array_equal(slot.b, scaled)):
            yield module


@pytest.mark.parametrize("engine", ["moe"], indirect=True)
def test_every_layout_of_experts_lies_in_its_slot_as_its_trainer_meant(
    engine: Any, tmp_path: Path
) -> None:
    cases = {
        name: case
        for name, case in MOE_CASES.items()
        if case.updates and case.engine == "qwen3-moe"
    }
    wanted, digests = profile("qwen3-moe"), dict[str, str]()

    async def run() -> None:
        volume = engine.arena.volume
        async with serving(volume, ARENA_BYTES, profile=lambda: wanted) as sidecar:
            for name, case in cases.items():
                case.write(tmp_path / "team-a" / "cases" / str(len(digests)))
                staged = await stage_path(sidecar, tmp_path, str(len(digests)))
                digests.setdefault(staged.digest, name)

    asyncio.run(run())
    wrong = []
    for number, (digest, name) in enumerate(digests.items(), start=2000):
        slot = load_for_step(engine.lora, ours(engine.arena.volume, number, digest))
        wrong += [f"{name}: {m}" for m in unequal(slot_factors(slot), cases[name].updates)]
        assert engine.lora.remove_adapter(number)
    assert wrong == []
    assert len(digests) > 30
