"""First fit on 2 MiB borders, and which revisions have to go for a reservation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_sidecar.allocator import ALIGNMENT, Allocator, Extent, aligned, choose_victims

M = ALIGNMENT


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    assert [aligned(size) for size in (0, 1, M, M + 1)] == [0, M, M, 2 * M]


def test_a_limit_is_rounded_down_so_that_no_extent_sticks_out() -> None:
    assert Allocator(3 * M + 5).limit == 3 * M


def test_the_first_hole_that_is_large_enough_is_taken() -> None:
    room = Allocator(10 * M)
    first, second, third = (room.allocate(2 * M) for _ in range(3))
    assert (first, second, third) == (Extent(0, 2 * M), Extent(2 * M, 2 * M), Extent(4 * M, 2 * M))
    room.free(Extent(2 * M, 2 * M))
    assert room.allocate(3 * M) == Extent(6 * M, 3 * M)
    assert room.allocate(1) == Extent(2 * M, M)
    assert room.largest_free() == M
    assert room.allocate(2 * M) is None


@pytest.mark.parametrize(
    ("extent", "complaint"),
    [
        (Extent(M, 2 * M), "overlaps"),
        (Extent(0, M), "overlaps"),
        (Extent(3 * M, 2 * M), "outside"),
        (Extent(1, M), "not aligned"),
        (Extent(2 * M, 0), "not aligned"),
        (Extent(2 * M, M - 1), "not aligned"),
    ],
)
def test_a_range_that_cannot_be_taken_is_refused(extent: Extent, complaint: str) -> None:
    room = Allocator(4 * M)
    room.take(Extent(0, 2 * M))
    with pytest.raises(ValueError, match=complaint):
        room.take(extent)
    assert room.taken_bytes() == 2 * M


def test_only_what_was_taken_can_be_freed() -> None:
    room = Allocator(4 * M)
    room.take(Extent(0, 2 * M))
    with pytest.raises(ValueError, match="not taken"):
        room.free(Extent(0, M))
    assert room.taken_bytes() == 2 * M


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * M)), max_size=40))
def test_holes_and_extents_always_cover_the_arena_exactly(steps: list[tuple[bool, int]]) -> None:
    room = Allocator(16 * M)
    taken: list[Extent] = []
    for allocate, number in steps:
        if allocate:
            extent = room.allocate(number)
            if extent is None:
                assert room.largest_free() < aligned(number)
            else:
                taken.append(extent)
        elif taken:
            room.free(taken.pop(number % len(taken)))
        at = 0
        for piece in sorted([*taken, *room.holes()]):
            assert piece.offset == at
            at = piece.end
        assert at == 16 * M


def test_nobody_goes_while_there_is_a_hole() -> None:
    assert choose_victims(4 * M, [Extent(0, M)], [Extent(M, M)], 2 * M) == []


def test_the_least_recently_used_goes_first() -> None:
    old, new = Extent(2 * M, 2 * M), Extent(0, 2 * M)
    assert choose_victims(4 * M, [], [old, new], 2 * M) == [old]


def test_a_victim_that_does_not_border_on_the_hole_is_spared() -> None:
    lonely, left, right = Extent(0, M), Extent(2 * M, M), Extent(3 * M, M)
    kept = [Extent(M, M)]
    assert choose_victims(4 * M, kept, [lonely, left, right], 2 * M) == [left, right]


def test_nobody_goes_in_vain() -> None:
    assert choose_victims(4 * M, [Extent(M, M)], [Extent(0, M), Extent(2 * M, M)], 3 * M) is None
