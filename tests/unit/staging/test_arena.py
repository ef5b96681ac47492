"""The arena's file: allocated whole, fixed in size, with holes for plain exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lorafleet_sidecar.allocator import ALIGNMENT, Extent
from lorafleet_sidecar.arena import Arena, ArenaError

if TYPE_CHECKING:
    from pathlib import Path

M = ALIGNMENT


def allocated(arena: Arena) -> int:
    return arena.path.stat().st_blocks * 512


def test_every_page_is_allocated_at_the_start(volume: Path) -> None:
    arena = Arena.create_or_open(volume, 4 * M)
    assert arena.path.stat().st_size == 4 * M
    assert allocated(arena) == 4 * M
    arena.close()


def test_the_engine_of_another_user_may_read_it(volume: Path) -> None:
    arena = Arena.create_or_open(volume, M)
    assert arena.path.stat().st_mode & 0o777 == 0o664
    arena.close()


def test_bytes_survive_a_restart(volume: Path) -> None:
    arena = Arena.create_or_open(volume, 2 * M)
    arena.view[M : M + 5] = b"hello"
    arena.close()
    again = Arena.create_or_open(volume, 2 * M)
    assert bytes(again.view[M : M + 5]) == b"hello"
    again.close()


@pytest.mark.parametrize("other", [M, 4 * M])
def test_the_size_of_a_volumes_arena_never_changes(volume: Path, other: int) -> None:
    Arena.create_or_open(volume, 2 * M).close()
    with pytest.raises(ArenaError, match=f"has {2 * M} bytes and the limit is {other}"):
        Arena.create_or_open(volume, other)
    assert (volume / "arena").stat().st_size == 2 * M


def test_a_start_that_was_killed_half_way_may_begin_again_with_another_size(volume: Path) -> None:
    (volume / "arena").write_bytes(b"x" * 1000)
    arena = Arena.create_or_open(volume, 2 * M)
    assert allocated(arena) == 2 * M
    arena.close()


def test_a_limit_below_one_extent_is_refused(volume: Path) -> None:
    with pytest.raises(ArenaError, match=f"the least is {M}"):
        Arena.create_or_open(volume, M - 1)


def test_a_volume_that_is_too_small_is_named(volume: Path) -> None:
    with pytest.raises(ArenaError, match=r"the volume has [0-9]+ bytes left"):
        Arena.create_or_open(volume, 1 << 60)


def test_a_punched_range_gives_its_pages_back_and_takes_them_again(volume: Path) -> None:
    arena = Arena.create_or_open(volume, 4 * M)
    arena.view[M : M + 4] = b"gone"
    arena.view[2 * M : 2 * M + 4] = b"here"
    arena.punch(Extent(M, M))
    assert allocated(arena) == 3 * M
    assert bytes(arena.view[2 * M : 2 * M + 4]) == b"here"
    arena.refill(Extent(M, M))
    assert allocated(arena) == 4 * M
    assert bytes(arena.view[M : M + 4]) == bytes(4)
    arena.close()


def test_ranges_lent_to_plain_files_stay_holes_over_a_restart(volume: Path) -> None:
    arena = Arena.create_or_open(volume, 4 * M)
    arena.punch(Extent(M, M))
    arena.close()
    again = Arena.create_or_open(volume, 4 * M, [Extent(M, M)])
    assert allocated(again) == 3 * M
    again.close()


def test_another_process_sees_the_same_bytes(volume: Path) -> None:
    arena = Arena.create_or_open(volume, M)
    other = Arena.attach(volume)
    other.view[:3] = b"abc"
    assert bytes(arena.view[:3]) == b"abc"
    other.close()
    arena.close()
