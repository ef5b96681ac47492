"""Reading a revision that is being pushed: what is not there yet, or not right, is waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import DigestMismatch, SourceUnavailable
from lorafleet_operator.push.arriving import Arrival, ArrivingSource
from lorafleet_operator.push.incoming import Incoming
from spool_builders import push, revision, spool

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
        with pytest.raises(SourceUnavailable, match="broken off"):
            await each
    await coming.source.aclose()
