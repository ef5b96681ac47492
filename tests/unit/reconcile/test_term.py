"""A pass acts only within its term: neither orders nor writes come after it."""

from __future__ import annotations

import asyncio

import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator import term
from lorafleet_operator.term import Term, TermOver
from lorafleet_operator.transfer.client import SidecarClient


def test_outside_of_passes_there_is_no_term_that_could_be_over() -> None:
    assert term.check() == float("inf")


def test_a_term_ends_by_itself_and_a_renewal_moves_its_end() -> None:
    short = Term(until=term.now() - 1)
    with short.acting():
        with pytest.raises(TermOver):
            term.check()
        short.until = term.now() + 60
        assert 59 < term.check() <= 60
        short.end()
        with pytest.raises(TermOver):
            term.check()
    assert term.check() == float("inf")


async def test_what_a_pass_starts_is_within_its_term_and_what_runs_beside_it_is_not() -> None:
    over = Term(until=0)

    async def act() -> float:
        return term.check()

    with over.acting():
        inside = asyncio.create_task(act())
    assert await asyncio.create_task(act()) == float("inf")
    with pytest.raises(TermOver):
        await inside


async def test_every_order_to_a_sidecar_is_refused_after_the_term() -> None:
    sidecar = SidecarClient("127.0.0.1", 1)
    with Term(until=0).acting():
        with pytest.raises(TermOver):
            await sidecar.load(pb.LoadAdapterRequest(), 1)
        with pytest.raises(TermOver):
            await sidecar.unload(pb.UnloadAdapterRequest(), 1)
        with pytest.raises(TermOver):
            await sidecar.send(pb.SendAdapterRequest(), 1)
        with pytest.raises(TermOver):
            sidecar.stage()
    await sidecar.close()
