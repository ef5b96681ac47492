"""Two ranks of a real server hold what stock vLLM's do, and agree when one refuses (two GPUs)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What bench/gpu/parallel.py found with a tiny model with experts."""
    out = tmp_path_factory.mktemp("parallel")
    paths = [str(ROOT / each) for each in ("engine_sidecar", "protos", "tests")]
    path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gpu" / "parallel.py"), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path, "LORAFLEET_BENCH_SHAPE": "moe"},
        check=True,
    )
    found: dict[str, Any] = json.loads((out / "parallel.json").read_text())
    return found


@pytest.mark.parametrize("engine", ["moe tp", "moe ep"])
def test_slots_of_both_ranks_are_stocks(figures: dict[str, Any], engine: str) -> None:
    assert figures[engine]["slots_equal"]
    assert len(set(figures[engine]["buffers"])) == 1
    told, found = figures[engine]["slot_bytes"], figures[engine]["slot_bytes_of_buffers"]
    assert all(abs(a - b) <= 0.01 * b for a, b in zip(told, found, strict=True))


@pytest.mark.parametrize("engine", ["moe tp", "moe ep"])
def test_a_rank_that_refuses_leaves_all_on_the_old_state(
    figures: dict[str, Any], engine: str
) -> None:
    refusals = figures[engine]["refusals"]
    assert {(each["rank"], each["at"]) for each in refusals} == {
        (rank, place) for rank in (0, 1) for place in ("current", "advance")
    }
    for each in refusals:
        assert "broken on purpose" in each["refused"]
        assert each["ranks_unchanged"]
        assert each["tokens_unchanged"]
        assert each["loads_afterwards"]


@pytest.mark.parametrize("engine", ["moe tp", "moe ep"])
def test_the_arena_is_mapped_by_both_and_counted_once(figures: dict[str, Any], engine: str) -> None:
    found = figures[engine]
    assert all(each["arena_rss"] == found["arena_bytes"] for each in found["ranks"])
    assert abs(found["arena_pss_bytes"] - found["arena_bytes"]) <= 0.01 * found["arena_bytes"]
    assert found["temp_kept_bytes"] == [0, 0]
