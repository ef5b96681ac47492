"""`ResolvedAdapter.read`: any range over any cut of the data, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.sources.base import MAX_READ_BYTES, ResolvedAdapter, Segment
from source_builders import MemoryBlob, pattern


def resolved(segments: tuple[Segment, ...], data_bytes: int) -> ResolvedAdapter:
    return ResolvedAdapter("f", b"{}", b"{}", data_bytes, "r", "u", segments)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
async def test_a_read_over_several_files_equals_the_joined_files(
    lengths: list[int], data: st.DataObject
) -> None:
    segments, whole = [], b""
    for index, length in enumerate(lengths):
        content = pattern(length, index)
        segments.append(Segment(len(whole), length, MemoryBlob("x", b"junk" + content + b"j"), 4))
        whole += content
    adapter = resolved(tuple(segments), len(whole))
    offset = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - offset))
    assert bytes(await adapter.read(offset, length)) == whole[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 11), (11, 0), (5, -1)])
async def test_a_range_outside_of_the_data_is_a_programming_error(offset: int, length: int) -> None:
    adapter = resolved((Segment(0, 10, MemoryBlob("x", bytes(10)), 0),), 10)
    with pytest.raises(ValueError, match="outside the 10 data bytes"):
        await adapter.read(offset, length)


async def test_one_read_has_a_limit() -> None:
    adapter = resolved((), MAX_READ_BYTES * 2)
    with pytest.raises(ValueError, match="at most"):
        await adapter.read(0, MAX_READ_BYTES + 1)
