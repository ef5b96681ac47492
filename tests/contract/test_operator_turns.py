"""What passes wait for, and in which order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lorafleet_operator.api.names import FINALIZER
from lorafleet_operator.fair import Turn
from lorafleet_operator.memory import Look
from lorafleet_operator.passes import adapter_pass
from operator_rig import operator, ready
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from operator_rig import Operator


async def test_a_pass_waits_for_its_source_before_it_takes_a_place_among_the_transfers(
    volume: Path, tmp_path: Path
) -> None:
    """In the other order passes of the one kind and the other wait for each other for ever."""
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        made = op.adapter("sql")
        paused = {"lorafleet.dev/paused": "true"}
        metadata = made.metadata.model_copy(update={"annotations": paused})
        await op.apply(made.model_copy(update={"metadata": metadata}))  # knows the source now
        taken = [f"other-{number}" for number in range(op.fleet.settings.sources)]
        for other in taken:
            await op.fleet.sources.take(other)
        work = asyncio.create_task(op.apply(made))
        await asyncio.sleep(0.2)
        assert not work.done()
        for other in taken[: op.fleet.settings.transfers]:
            async with asyncio.timeout(60):
                await op.fleet.transfers.take(other)
        for other in taken[: op.fleet.settings.transfers]:
            op.fleet.transfers.give_back(other)
        for other in taken:
            op.fleet.sources.give_back(other)
        assert ready(await work)[0] == "True"


def _known(op: Operator, name: str) -> str:
    """Make an adapter what the watch has brought; return its UID."""
    body = op.adapter(name).to_api()
    body["metadata"] |= {
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [FINALIZER],
    }
    uid: str = body["metadata"]["uid"]
    op.fleet.world.living.add(uid)  # type: ignore[attr-defined]
    op.fleet.bodies.keep(body)
    return uid


async def test_who_looks_again_waits_without_a_place_and_not_in_front_of_who_is_new(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source is looked at each minute: thousands of passes wait for that after a rush."""
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        memory, sources = op.fleet.memory, op.fleet.sources
        for number in range(op.fleet.settings.sources):
            await sources.take(f"other-{number}")
        places = asyncio.Semaphore(5)
        known = [_known(op, f"known-{number}") for number in range(4)]
        for uid in known:
            memory.keep_look(uid, Look(1, at=-3600.0, fingerprint="before"))
        passes = []
        for uid in (*known, _known(op, "new")):
            place = Turn(places)
            await place.take()
            passes.append(asyncio.create_task(adapter_pass(uid, place, op.fleet)))
        await until(lambda: places._value == 5)  # who waits has left its place to others
        assert not any(each.done() for each in passes)
        looked, keep = list[str](), memory.keep_look
        monkeypatch.setattr(
            memory, "keep_look", lambda uid, look: (looked.append(uid), keep(uid, look))
        )
        sources.give_back("other-0")  # one at a time: each goes on when the one before has looked
        await until(lambda: "uid-new" in looked)
        assert looked.index("uid-new") <= 1, "behind one of those that look again, not behind all"
        for each in passes:
            each.cancel()
        await asyncio.gather(*passes, return_exceptions=True)
