"""Every layout of experts through real staging: the arena holds the trainer's factors, bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from lorafleet.errors import AdapterRejected
from moe_case import engines
from moe_cases import CASES
from staged_cases import read_back, stage_path
from staging_server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from moe_case import MoeCase
    from staged_cases import Factors


def wrong(found: dict[str, Factors], case: MoeCase) -> list[str]:
    """Return the modules whose factors are not those of the case, padding and zeros included."""
    names = []
    for name, (scaling, a, b) in found.items():
        if name not in case.updates:
            if a.any() or b.any():
                names.append(name)
            continue
        wanted_a, wanted_b, wanted_scaling = case.updates[name]
        rank = len(wanted_a)
        same = np.array_equal(a[:rank], wanted_a) and np.array_equal(b[:, :rank], wanted_b)
        if not same or a[rank:].any() or b[:, rank:].any() or scaling != wanted_scaling:
            names.append(name)
    return names + sorted(set(case.updates) - set(found))


@pytest.mark.parametrize("engine", sorted({case.engine for case in CASES.values()}))
async def test_the_arena_holds_what_each_trainer_meant(
    engine: str, volume: Path, tmp_path: Path
) -> None:
    profile = engines()[engine]
    cases = {name: case for name, case in CASES.items() if case.engine == engine}
    async with serving(volume, profile=lambda: profile) as sidecar:
        for number, (name, case) in enumerate(cases.items()):
            case.write(tmp_path / "team-a" / "cases" / str(number))
            if case.error:
                with pytest.raises(AdapterRejected) as refused:
                    await stage_path(sidecar, tmp_path, str(number))
                assert case.error in str(refused.value), name
                continue
            digest = (await stage_path(sidecar, tmp_path, str(number))).digest
            assert wrong(read_back(volume, digest), case) == [], name
