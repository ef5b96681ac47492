"""Every dense adapter of `dense_cases` through the real chain of staging, as the command reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dense_case import ONLY_THE_COMMAND, manifest
from dense_cases import CASES
from format_cases import numbers, profile
from lorafleet.errors import LorafleetError
from staged_cases import read_back, stage_path
from staging_server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from dense_case import DenseCase


def differences(found: dict[str, Any], case: DenseCase) -> list[str]:
    """Return what the arena holds that the trainer did not mean."""
    if set(found) != set(case.updates):
        return [f"modules are {sorted(found)}"]
    wrong = []
    for name, (a, b, scaling) in case.updates.items():
        have, want = found[name], numbers(a, b, scaling)
        same = np.array_equal(have.a, a) and np.array_equal(have.b, b)
        if have.scaling != scaling or not same:
            wrong.append(f"{name}: {numbers(have.a, have.b, have.scaling)}, expected {want}")
    return wrong


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_what_is_staged_is_what_the_command_told(
    dtype: str, volume: Path, tmp_path: Path
) -> None:
    engine = replace(profile("qwen3-dense"), dtype=dtype)
    wrong: dict[str, Any] = {}
    tried = 0
    async with serving(volume, 64 << 20, profile=lambda: engine) as sidecar:
        for number, (name, case) in enumerate(CASES.items()):
            if (case.engine == "float16") != (dtype == "float16") or name in ONLY_THE_COMMAND:
                continue
            tried += 1
            folder = tmp_path / "team-a" / "cases" / str(number)
            folder.mkdir(parents=True)
            case.write(folder)
            try:
                path = f"{number}/{case.path}".rstrip("/")
                staged = await stage_path(sidecar, tmp_path, path, **manifest(case))
            except LorafleetError as error:
                if not case.error or case.error not in str(error) or error.reason != case.reason:
                    wrong[name] = (error.reason, str(error))
                continue
            if case.error:
                wrong[name] = f"staged, expected {case.error}"
                continue
            found = differences(read_back(volume, staged.digest), case)
            if found:
                wrong[name] = found
    assert wrong == {}
    assert tried == {"bfloat16": 226, "float16": 2}[dtype]
