"""Every handed case through the real chain of staging, read back from the arena's file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from format_cases import CASES, profile
from lorafleet.errors import LorafleetError
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.client import SidecarClient
from sidecar_rig import Rig
from staged_cases import INDEX, LOADED, NOT_BFLOAT16, differences, engine_of, read_back, stage_case
from staging_server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.profile import EngineProfile
    from staging_server import Serving

NAMES = "o05-names"  # about served names: nothing of it is staged
OVERFLOW = "d04-fp16-overflow"  # the engine's dtype decides
REFUSED = [
    (case, row["expected outcome"].removeprefix("error:"))
    for case, row in INDEX.items()
    if row["expected outcome"].startswith("error:") and case != NAMES
]


def engine(case: str, dtype: str = "bfloat16") -> EngineProfile:
    return replace(profile(f"qwen3-{engine_of(case)}"), dtype=dtype)


def is_empty(sidecar: Serving) -> bool:
    """Whether nothing is taken of the arena, nor kept of a transfer."""
    usage, folder = sidecar.store.usage(), sidecar.store.volume
    left = [path for name in ("revisions", "staging") for path in (folder / name).glob("*")]
    return (usage.used, usage.reserved, sidecar.store.extents(), left) == (0, 0, [], [])


def says(case: str, notes: tuple[str, ...]) -> None:
    """Assert that a staged case says what was rewritten, and nothing where nothing was."""
    kind, _, text = INDEX[case]["expected outcome"].partition(":")
    if kind == "normalised":
        assert any(text in note for note in notes), notes
    else:
        assert notes == (("AdapterIsIdentity",) if case == "d50-all-lora-b-zero" else ())


@pytest.mark.parametrize(("case", "part"), LOADED)
async def test_a_staged_case_computes_the_expected_updates(
    case: str, part: str, volume: Path, tmp_path: Path
) -> None:
    async with serving(volume, profile=partial(engine, case)) as sidecar:
        digest, rewritten = await stage_case(sidecar, tmp_path, case, part)
        rounded = int(case in NOT_BFLOAT16)
        found = read_back(volume, digest)
        wrong = list(differences(found, case, part, a_rounded=rounded, b_rounded=rounded))
        assert wrong == []
        (revision,) = sidecar.store.revisions()
        assert revision.digest == digest
        says(case, (*rewritten, *revision.notes))


@pytest.mark.parametrize("case", sorted(NOT_BFLOAT16))
async def test_what_the_cast_rounds_is_exact_without_the_cast(
    case: str, volume: Path, tmp_path: Path
) -> None:
    async with serving(volume, profile=partial(engine, case, dtype="float32")) as sidecar:
        digest, _ = await stage_case(sidecar, tmp_path, case)
        assert list(differences(read_back(volume, digest), case, "")) == []


@pytest.mark.parametrize(("case", "message"), REFUSED)
async def test_a_refused_case_leaves_the_arena_empty(
    case: str, message: str, volume: Path, tmp_path: Path
) -> None:
    dtype = "float16" if case == OVERFLOW else "bfloat16"
    async with serving(volume, profile=partial(engine, case, dtype)) as sidecar:
        with pytest.raises(LorafleetError) as refused:
            await stage_case(sidecar, tmp_path, case)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
        assert refused.value.terminal or case == "d51-config-missing"  # a file may still come
        assert is_empty(sidecar)


async def test_an_overflow_of_float16_is_taken_by_an_engine_of_bfloat16(
    volume: Path, tmp_path: Path
) -> None:
    async with serving(volume, profile=partial(engine, OVERFLOW)) as sidecar:
        found = read_back(volume, (await stage_case(sidecar, tmp_path, OVERFLOW)).digest)
        largest = {name: abs(factors.b).max() for name, factors in found.items()}
        assert len(found) == 4
        assert max(largest.values()) == pytest.approx(7e4, rel=2**-8)


async def test_a_refused_name_is_not_loaded_and_accepted_ones_are_told_apart(volume: Path) -> None:
    rows = [row.partition("\t") for row in (CASES / NAMES / "names.tsv").read_text().splitlines()]
    outcomes = {name: outcome for name, _, outcome in rows[1:]}
    accepted = [name for name, outcome in outcomes.items() if not outcome.startswith("error:")]
    assert (len(accepted), len(outcomes)) == (8, 13)
    async with Rig(volume) as rig:
        client = SidecarClient("127.0.0.1", rig.sidecar.port)
        for number, (name, outcome) in enumerate(outcomes.items()):
            request = pb.LoadAdapterRequest(
                adapter=f"team-a/adapter-{number}",
                served_name=name,
                digest=rig.put(number),
                loader="direct",
                publish=True,
            )
            if name in accepted:
                await client.load(request, 10)
                continue
            with pytest.raises(LorafleetError) as refused:
                await client.load(request, 10)
            assert outcome.removeprefix("error:") in str(refused.value)
        await client.close()
        loaded = {entry.served_name: entry.digest for entry in (await rig.inventory()).loaded}
        assert sorted(loaded) == sorted(accepted)
        assert len(set(loaded.values())) == len(accepted)
        answers = {name: await rig.answer(name) for name in accepted}
        assert len(set(answers.values())) == len(accepted)


def test_every_case_is_looked_at() -> None:
    seen = {case for case, _ in LOADED + REFUSED} | {NAMES}
    assert seen == set(INDEX) == {path.name for path in CASES.iterdir() if path.is_dir()}
    assert len(INDEX) == 48
