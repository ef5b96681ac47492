"""What a worker says of its own memory: what it shares with no file and since when, and what a load took."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import torch
from lorafleet_vllm import stats as stats_module
from lorafleet_vllm.stats import WorkerStats

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pytest

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


class Allocator:
    """torch's counts of device memory, moved by hand."""

    def __init__(self) -> None:
        self.now = self.highest = 100

    def move(self, *levels: int) -> None:
        for self.now in levels:
            self.highest = max(self.highest, self.now)

    def reset(self, *_: object) -> None:
        self.highest = self.now

    def told(self, _: torch.device) -> tuple[int, int]:
        return self.now, self.highest


def test_what_a_part_of_a_load_leaves_for_the_next_is_temporary_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, cuda, stats = Allocator(), torch.device("cuda"), WorkerStats()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", memory.reset)
    monkeypatch.setattr(stats_module, "_allocated", memory.told)

    def build() -> Generator[None, None, str]:
        memory.move(107, 104)  # four stay: tensors that are built
        yield
        memory.move(106)
        return "model"

    parts = stats.measured_parts("build", build(), cuda, more=False)
    assert next(parts) is False
    memory.move(150, 104)  # a step in between: not the load's
    assert list(parts) == []
    assert (stats.temporary_peak_bytes, stats.temporary_kept_bytes) == (7, 6)
    with stats.device_memory(cuda, more=True):
        memory.move(125, 100)  # 19 more on top of the six, and nothing stays
    assert (stats.temporary_peak_bytes, stats.temporary_kept_bytes) == (25, 0)
    with stats.device_memory(cuda):
        memory.move(101, 100)  # another load
    assert (stats.temporary_peak_bytes, stats.temporary_kept_bytes) == (1, 0)
