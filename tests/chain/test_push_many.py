"""Push after push of one adapter through a real engine: nothing is kept but what is promised."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil
import pytest
from operator_chain import BASE
from push_training import Tenths, policy
from real_chain import ENGINE
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.push import Fleet
    from real_chain import RealChain

pytestmark = [pytest.mark.cluster, pytest.mark.chain, pytest.mark.engine]
PUSHES = 30
ON_DISK = 3
"""Revisions that the operator keeps by default."""
_RECEIVED = "lorafleet_sidecar_received_bytes_total"
SPARE = 8
"""Open files that come and go with connections."""


def open_files(fleet: RealChain) -> dict[str, int]:
    assert fleet.operator is not None
    roots = {
        "engine": fleet.engines[ENGINE].process.pid,
        "sidecar": fleet.sidecars[ENGINE].process.pid,
        "operator": fleet.operator.process.pid,
        "trainer": os.getpid(),
    }
    return {name: sum(each.num_fds() for each in family(pid)) for name, pid in roots.items()}


def family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *(() if pid == os.getpid() else root.children(recursive=True))]


def in_use(fleet: RealChain) -> float:
    """Return the bytes of the arena that the engine may read; what else lies there gives way."""
    return fleet.metric(ENGINE, "lorafleet_sidecar_staging_in_use_bytes")


def test_many_pushes_send_what_changed_and_leave_nothing_behind(
    fleet: RealChain, client: Fleet, tmp_path: Path
) -> None:
    model = policy(fleet.model)
    tenths = Tenths(model)
    size = sum(p.nbytes for name, p in model.named_parameters() if "lora_" in name)
    folder = tmp_path / "pushed" / fleet.namespace / "many"
    others = in_use(fleet)
    sent: list[int] = []
    received = [fleet.metric(ENGINE, _RECEIVED)]
    early: dict[str, int] = {}
    for step in range(PUSHES):
        tenths.change(step)
        made = client.push(model, name="many", step=step, base_model=BASE, pool="pool")
        assert made is not None
        made.wait(timeout=60)
        sent.append(made.sent_bytes)
        received.append(fleet.metric(ENGINE, _RECEIVED))
        kept = list((folder / "revisions").iterdir())
        assert len(kept) <= ON_DISK + 1, "those that are kept, and one that a spec still named"
        assert sum(file.stat().st_size for file in (folder / "data").iterdir()) < 3 * size
        if step == 0:
            eventually(lambda: in_use(fleet) > others, 60)
            one = in_use(fleet) - others
        if step == PUSHES // 3:
            early = open_files(fleet)
    assert sent[0] == size
    assert max(sent[1:]) <= 0.15 * size
    to_engine = [after - before for before, after in pairwise(received)]
    assert to_engine[0] == size
    assert max(to_engine[1:]) <= 0.15 * size, "what the engine has is not sent there again"
    assert len(kept) == ON_DISK
    eventually(lambda: in_use(fleet) == others + one, 60, "the engine keeps more than one revision")
    eventually(
        lambda: all(n < early[who] + SPARE for who, n in open_files(fleet).items()),
        60,
        f"open files grow with pushes: {early} and now {open_files(fleet)}",
    )
    fleet.wait_gone("many")
    eventually(lambda: in_use(fleet) == others, 60, "the engine keeps what was deleted")
