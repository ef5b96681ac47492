"""What a worker says of its own host memory: what it shares with no file, and since when it counts."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import torch
from lorafleet_vllm.stats import WorkerStats

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
MIB = 1 << 20


def test_pages_of_a_file_are_resident_and_not_private(tmp_path: Path) -> None:
    stats = WorkerStats()
    file = tmp_path / "arena"
    file.write_bytes(b"x" * (64 * MIB))
    before = stats.to_dict(CPU)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as arena:
        assert sum(arena[at] for at in range(0, 64 * MIB, 4096)) > 0
        mapped = stats.to_dict(CPU)
        own = bytearray(b"y" * (32 * MIB))
        grown = stats.to_dict(CPU)
    assert mapped["resident_host_bytes"] - before["resident_host_bytes"] > 48 * MIB
    assert mapped["private_host_bytes"] - before["private_host_bytes"] < 16 * MIB
    assert grown["private_host_bytes"] - mapped["private_host_bytes"] > 24 * MIB
    assert len(own) == 32 * MIB


def test_the_baseline_is_taken_once_after_the_first_loads() -> None:
    stats = WorkerStats(loads=7)
    assert stats.to_dict(CPU)["baseline_host_bytes"] == 0
    stats.loads = 9
    first = stats.to_dict(CPU)
    assert (first["baseline_loads"], first["baseline_host_bytes"]) == (
        9,
        first["private_host_bytes"],
    )
    stats.loads = 100
    kept = bytearray(b"y" * (32 * MIB))
    later = stats.to_dict(CPU)
    assert (later["baseline_loads"], later["baseline_host_bytes"]) == (
        9,
        first["private_host_bytes"],
    )
    assert later["private_host_bytes"] > first["private_host_bytes"] + 24 * MIB
    assert len(kept) == 32 * MIB
