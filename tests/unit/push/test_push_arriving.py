"""Reading a revision that is being pushed: what is not there yet, or not right, is waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import DigestMismatch, SourceUnavailable, TransferInterrupted
from lorafleet_operator.push.arriving import Arrival, ArrivingSource
from lorafleet_operator.push.incoming import Incoming
from spool_builders import end, push, revision, spool

if TYPE_CHECKING:
    from pathlib import Path

KEY = "t/a"
NEW = (b"first" * 9, b"second" * 9, b"third" * 9)


class Coming:
    """A push of NEW after one of its first tensor, and who reads it."""

    def __init__(self, root: Path) -> None:
        self.spool = spool(root)
        push(self.spool, KEY, NEW[:1], set())
        self.incoming = Incoming(self.spool, KEY, revision(NEW))
        self.incoming.open(set())
        self.arrival = Arrival()
        loop = asyncio.get_running_loop()
        self.incoming.on_count = lambda at: loop.call_soon_threadsafe(self.arrival.came, at)
        self.source = ArrivingSource(
            self.spool.folder(KEY),
            revision(NEW),
            self.incoming.promised(),
            self.arrival,
            lambda amount: None,
        )

    def bring(self, content: bytes) -> None:
        self.incoming.write(self.incoming.missing[self.incoming._next], 0, content)


@pytest.fixture
async def coming(tmp_path: Path) -> Coming:
    return Coming(tmp_path)


async def test_it_gives_each_tensor_when_that_is_there_and_right_also_after_the_push(
    coming: Coming,
) -> None:
    content = await coming.source.resolve()
    ends = [len(NEW[0]), len(NEW[0] + NEW[1]), content.data_bytes]
    assert await content.read(0, ends[0]) == NEW[0], "an earlier push brought it"
    second = asyncio.create_task(content.read(ends[0], len(NEW[1])))
    across = asyncio.create_task(content.read(ends[0] - 1, content.data_bytes - ends[0] + 1))
    await asyncio.sleep(0.05)
    assert not second.done()
    coming.bring(NEW[1])
    assert await second == NEW[1]
    assert not across.done()
    coming.bring(NEW[2])
    assert await across == NEW[0][-1:] + NEW[1] + NEW[2]
    coming.incoming.commit()
    coming.incoming.close()
    coming.arrival.kept()
    assert await content.read(0, content.data_bytes) == b"".join(NEW), "under another name by now"
    confirming = asyncio.create_task(content.confirm())
    await asyncio.sleep(0)
    assert not confirming.done()
    coming.arrival.commit()
    coming.arrival.end()
    await confirming
    await coming.source.aclose()


async def test_wrong_bytes_and_what_never_comes_are_not_given(coming: Coming) -> None:
    content = await coming.source.resolve()
    reading = asyncio.create_task(content.read(len(NEW[0]), len(NEW[1])))
    confirming = asyncio.create_task(content.confirm())
    coming.bring(bytes(len(NEW[1])))
    with pytest.raises(DigestMismatch):
        coming.incoming.settle()
    await asyncio.sleep(0.05)
    assert not reading.done()
    coming.incoming.close()
    coming.arrival.end()
    for each in (reading, confirming):
        with pytest.raises(SourceUnavailable, match="the push is over"):
            await each
    await coming.source.aclose()


async def test_after_the_push_nothing_is_begun_whose_file_may_be_another_by_now(
    coming: Coming,
) -> None:
    coming.bring(NEW[1])
    coming.incoming.settle()
    coming.incoming.close()
    coming.arrival.end()
    await asyncio.sleep(0)
    assert coming.arrival._counted == len(NEW[1]), "as far as the file was right"
    part = coming.incoming._part
    part.unlink()
    part.write_bytes(NEW[2] + NEW[1])  # of a push of the same revision that lacked more
    with pytest.raises(SourceUnavailable, match="the push is over"):
        await coming.source.resolve()
    await coming.source.aclose()


async def test_what_moves_is_given_where_it_is_known_to_be_right(tmp_path: Path) -> None:
    kept, new = b"kept" * 9, b"new" * 9
    there = spool(tmp_path)
    push(there, KEY, (kept, *NEW), set())
    (before,) = (there.folder(KEY) / "data").iterdir()
    incoming = Incoming(there, KEY, revision((kept, new)))
    incoming.open(set())
    assert incoming._moving, "less than half of that file is of use"
    arrival, loop = Arrival(), asyncio.get_running_loop()
    incoming.on_count = lambda at: loop.call_soon_threadsafe(arrival.came, at)
    source = ArrivingSource(
        there.folder(KEY), revision((kept, new)), incoming.promised(), arrival, lambda amount: None
    )
    content = await source.resolve()
    reading = asyncio.create_task(content.read(0, len(kept)))
    before.write_bytes(bytes(before.stat().st_size))
    incoming.write(1, 0, new)
    with pytest.raises(TransferInterrupted, match="damaged on disk"):
        incoming.commit()
    await asyncio.sleep(0.05)
    assert not reading.done()
    incoming.close()
    there.release(KEY)
    arrival.end()
    with pytest.raises(SourceUnavailable):
        await reading
    await source.aclose()
    incoming = push(there, KEY, (kept, new), set())
    assert incoming.received_bytes == len(kept)


async def test_what_has_moved_is_given_from_there(tmp_path: Path) -> None:
    kept, new = b"kept" * 9, b"new" * 9
    there = spool(tmp_path)
    push(there, KEY, (kept, *NEW), set())
    incoming = Incoming(there, KEY, revision((kept, new)))
    incoming.open(set())
    arrival = Arrival()
    source = ArrivingSource(
        there.folder(KEY), revision((kept, new)), incoming.promised(), arrival, lambda amount: None
    )
    content = await source.resolve()
    incoming.write(1, 0, new)
    incoming.commit()
    end(there, KEY, incoming)
    arrival.kept()
    assert await content.read(0, content.data_bytes) == kept + new
    await source.aclose()
