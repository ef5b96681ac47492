"""Tensors on a device come to the host several at a time, through two buffers.

The buffer is another here (`late_buffers`), or one that is not pinned: how it is filled and read is
what a GPU has too. Events and streams run in `bench/gpu/push.py` alone, which compares the bytes.
"""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late_buffers import BOUNCE, FarTensor, LateBuffer
from lorafleet.push.background import _copied
from lorafleet.push.content import Content, from_tensors
from lorafleet.push.tensors import PIECE_BYTES, GivenTensor, PinnedBuffer, in_batches, read

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB, MIB = 1 << 10, 1 << 20


def tensor(size: int, seed: int = 0, *, across: bool = False) -> torch.Tensor:
    """Return a matrix of so many bytes of float32; `across`: its columns lie in memory."""
    values = torch.randn(size // 4, generator=torch.Generator().manual_seed(seed))
    return values.reshape(-1, 256).T if across else values.reshape(256, -1)


def contents(tensors: Mapping[str, torch.Tensor]) -> tuple[Content, Content]:
    """Return the same content on the host and as on a device."""
    named = {f"m.{name}.q_proj.lora_A.weight": each for name, each in tensors.items()}
    return from_tensors(named, {}, adapter="default"), from_tensors(
        named, {}, adapter="default", wrap=FarTensor
    )


def test_a_buffer_takes_many_and_one_is_filled_while_the_other_is_read() -> None:
    LateBuffer.forget()
    for _, _piece in read([FarTensor("t", tensor(64 * KIB)) for _ in range(200)]):
        LateBuffer.said.append("read")
    said = [each for at, each in enumerate(LateBuffer.said) if each != LateBuffer.said[at - 1]]
    assert said == [
        "fill a with 64",
        "fill b with 64",
        "wait a",
        "read",
        "fill a with 64",
        "wait b",
        "read",
        "fill b with 8",
        "wait a",
        "read",
        "wait b",
        "read",
    ]


SIZES = st.sampled_from([0, KIB, 3 * KIB, 1536 * KIB, 3 * MIB, 4 * MIB, 5 * MIB])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(SIZES, st.booleans(), st.booleans()), max_size=8))
def test_the_bytes_are_those_of_the_host_in_order(drawn: list[tuple[int, bool, bool]]) -> None:
    given_tensors = [
        tensor(size, seed, across=across) for seed, (size, across, _) in enumerate(drawn)
    ]
    tensors = [
        (FarTensor("t", each) if far else GivenTensor("t", each, BOUNCE))
        for each, (_, _, far) in zip(given_tensors, drawn, strict=True)
    ]
    found = [b""] * len(tensors)
    last = 0
    for batch in in_batches(tensors):
        assert 0 < sum(len(piece) for _, piece in batch) <= PIECE_BYTES
        for index, piece in batch:
            assert index >= last
            last = index
            found[index] += piece
    assert found == [each.contiguous().numpy().tobytes() for each in given_tensors]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([KIB, 3 * KIB, 1536 * KIB]), min_size=1, max_size=8))
def test_a_buffer_has_what_it_was_filled_with_last(sizes: list[int]) -> None:
    buffer = PinnedBuffer(pinned=False)
    for turn in range(2):
        flat = [tensor(size, turn).reshape(-1).view(torch.uint8) for size in sizes]
        fits = [each for at, each in enumerate(flat) if sum(sizes[: at + 1]) <= PIECE_BYTES]
        buffer.fill(fits)
        want = b"".join(each.numpy().tobytes() for each in fits)
        assert bytes(buffer.wait()[: len(want)]) == want


def mixed() -> dict[str, torch.Tensor]:
    shared = tensor(96 * KIB, 1)
    return {
        "large": tensor(9 * MIB, 2),
        "across": tensor(9 * MIB, 3, across=True),
        "same": shared,
        "again": shared,
        **{str(number): tensor(96 * KIB, number + 4) for number in range(100)},
    }


def test_digests_and_copies_are_those_of_the_host() -> None:
    here, there = contents(mixed())
    assert there.digests() == here.digests()
    copied = _copied(there, mmap.mmap(-1, there.size))
    assert copied.header == here.header
    assert copied.digests() == here.digests()


def test_what_shares_memory_is_copied_once() -> None:
    _, there = contents(mixed())
    LateBuffer.forget()
    there.digests()
    filled = [int(each.split()[-1]) for each in LateBuffer.said if each.startswith("fill")]
    assert sum(filled) == 6 + 101  # 9 MiB are three pieces
    # Nothing but what is large takes a buffer for itself.
    assert len(filled) < 6 + 101 * 96 * KIB // PIECE_BYTES + 3


def test_only_the_caller_asks_the_device() -> None:
    here = threading.get_ident()

    class Asked(FarTensor):
        def pieces(self) -> Any:
            assert threading.get_ident() == here
            yield from super().pieces()

    named = {f"m.{n}.q_proj.lora_A.weight": tensor(KIB, n) for n in range(9)}
    found = from_tensors(named, {}, adapter="default", wrap=Asked)
    assert len(set(found.digests())) == 9


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_of_one_tensor_are_hashed_in_order(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: threads)

    class Crumbs(FarTensor):
        def pieces(self) -> Any:
            for whole in super().pieces():
                yield from whole.split(KIB)

    named = {f"m.{n}.q_proj.lora_A.weight": tensor(96 * KIB, n) for n in range(3)}
    found = from_tensors(named, {}, adapter="default", wrap=Crumbs)
    assert found.digests() == from_tensors(named, {}, adapter="default").digests()
