"""Who may write into a staging's extent, and which chunk has come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import TransferInterrupted
from lorafleet_sidecar.gate import Gate
from lorafleet_sidecar.received import ReceivedMap

if TYPE_CHECKING:
    from pathlib import Path


def test_a_gate_admits_one_generation_and_nobody_after_it_is_shut(volume: Path) -> None:
    keeper, writer = Gate(volume / "gate"), Gate(volume / "gate")
    assert writer.generation() == 0
    with pytest.raises(TransferInterrupted, match="ended or taken over"), writer.passage(0):
        pytest.fail("a shut gate admitted a writer")
    keeper.open()
    first = writer.generation()
    with writer.passage(first):
        pass
    keeper.open()
    with pytest.raises(TransferInterrupted), writer.passage(first):
        pytest.fail("a writer of the last generation was admitted")
    keeper.shut()
    with pytest.raises(TransferInterrupted), writer.passage(writer.generation()):
        pytest.fail("a shut gate admitted a writer")
    keeper.close()
    writer.close()


def test_shutting_waits_for_the_write_under_way_and_admits_no_other(volume: Path) -> None:
    keeper, writer, late = (Gate(volume / "gate") for _ in range(3))
    keeper.open()
    generation = writer.generation()
    shut = threading.Event()

    def shutting() -> None:
        keeper.shut()
        shut.set()

    thread = threading.Thread(target=shutting)
    with writer.passage(generation):
        thread.start()
        while late.generation() != 0:  # the keeper has announced it
            pass
        assert not shut.wait(0.05)
        with pytest.raises(TransferInterrupted), late.passage(generation):
            pytest.fail("a writer came in while the gate was being shut")
    thread.join()
    assert shut.is_set()
    for gate in (keeper, writer, late):
        gate.close()


def test_a_chunk_counts_once_its_bytes_are_there(volume: Path) -> None:
    ReceivedMap.create(volume / "received", 4)
    ours, others = ReceivedMap(volume / "received"), ReceivedMap(volume / "received")
    with ours.claim(2):
        assert others.missing() == [0, 1, 2, 3]
        busy = pytest.raises(TransferInterrupted, match="chunk 2 is being sent by another stream")
        with busy, others.claim(2):
            pytest.fail("two streams wrote one chunk")
        with others.claim(3):
            pass
    assert (ours.missing(), others.count()) == ([0, 1], 2)
    with pytest.raises(TransferInterrupted, match="chunk 2 was sent twice"), others.claim(2):
        pytest.fail("a chunk was taken twice")
    ours.close()
    others.close()


def test_a_chunk_whose_write_failed_may_be_sent_again(volume: Path) -> None:
    ReceivedMap.create(volume / "received", 1)
    received = ReceivedMap(volume / "received")
    with pytest.raises(ValueError, match="wrong checksum"), received.claim(0):
        raise ValueError("wrong checksum")
    assert received.missing() == [0]
    with received.claim(0):
        pass
    assert received.missing() == []
    received.close()
