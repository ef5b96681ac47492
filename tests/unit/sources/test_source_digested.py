"""A file with a promised digest is checked in whatever order it is read."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest
from lorafleet.errors import DigestMismatch
from lorafleet_operator.sources.digested import DigestedBlob
from source_builders import MemoryBlob, pattern

CONTENT = pattern(1000)
PROMISED = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
WRONG = CONTENT[:500] + b"?" + CONTENT[501:]


def blob(content: bytes) -> DigestedBlob:
    return DigestedBlob(MemoryBlob("weights", content), "oci://x/y:z", PROMISED)


def cuts(order: str, seed: int = 0) -> list[tuple[int, int]]:
    """Reads that cover the file: as chunks, backwards, shuffled, or overlapping."""
    step = 37
    found = [(at, min(step, 1000 - at)) for at in range(0, 1000, step)]
    match order:
        case "backwards":
            found.reverse()
        case "shuffled":
            random.Random(seed).shuffle(found)
        case "header first":
            found = [(0, 9), (0, 32), (8, 100), (108, 892)]
        case "overlapping":
            found = [(max(0, at - 20), length + min(20, at)) for at, length in found]
    return found


@pytest.mark.parametrize(
    "order", ["forwards", "backwards", "shuffled", "header first", "overlapping"]
)
async def test_the_read_that_completes_a_wrong_content_is_refused(order: str) -> None:
    good, bad = blob(CONTENT), blob(WRONG)
    for at, length in cuts(order):
        assert await good.read(at, length) == CONTENT[at : at + length]
    *most, last = cuts(order)
    for at, length in most:
        await bad.read(at, length)
    with pytest.raises(DigestMismatch) as caught:
        await bad.read(*last)
    found = hashlib.sha256(WRONG).hexdigest()
    assert str(caught.value) == (
        f"weights in oci://x/y:z has the content sha256:{found}, the manifest promises {PROMISED}"
    )


async def test_a_file_that_is_not_read_whole_is_judged_when_asked_for() -> None:
    partly = blob(WRONG)
    assert await partly.read(400, 200) == WRONG[400:600]
    assert await partly.read(0, 400) == WRONG[:400]
    with pytest.raises(DigestMismatch):
        await partly.verify()


@pytest.mark.parametrize("spans", [[], [(0, 1000)], [(900, 100)], [(10, 5), (500, 100), (3, 4)]])
async def test_the_check_reads_each_byte_that_nobody_read_and_no_other(
    spans: list[tuple[int, int]],
) -> None:
    content = MemoryBlob("weights", CONTENT)
    whole = DigestedBlob(content, "oci://x/y:z", PROMISED)
    for at, length in spans:
        await whole.read(at, length)
    await whole.verify()
    assert sorted(content.reads) == sorted(set(content.reads))
    assert sum(length for _, length in content.reads) == 1000
    await whole.verify()
    assert sum(length for _, length in content.reads) == 1000


async def test_an_empty_file_is_judged_too() -> None:
    with pytest.raises(DigestMismatch):
        await blob(b"").verify()


async def test_a_read_that_is_cancelled_leaves_the_check_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = blob(CONTENT)
    await good.read(0, 100)

    async def cancelled(*args: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await good.read(100, 100)
    await good.read(200, 800)
    await good.verify()


async def test_the_digest_is_the_whole_identity() -> None:
    assert blob(CONTENT).identity == blob(CONTENT).revision == PROMISED
