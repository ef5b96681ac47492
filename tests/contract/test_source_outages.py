"""A source that is away or hangs: what engines have of an adapter is enough for other engines, and what
has to go goes at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
import torch
from known_fleet import Sleeper
from lorafleet_operator import outgoing
from lorafleet_operator.api.names import ANNOTATION_PAUSED
from lorafleet_operator.fair import FairPlaces
from lorafleet_operator.rounds import Outcome, Rounds
from lorafleet_operator.transfer.streaming import Limits
from operator_builders import adapter as built
from operator_builders import pool
from operator_rig import CASES, Operator, operator, ready
from processes import free_port
from safetensors.torch import load_file, save_file
from sidecar_rig import Rig
from source_builders import artifact
from waiting import until
from web_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.fair import Turn

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer().running() as server:
        yield server


def remote(op: Operator, web: WebServer, name: str, **spec: Any) -> LoRAAdapter:
    """Make an adapter whose source is the web server."""
    url = web.put(f"/{name}", CASES / "d02-all-fp32")
    made = built(name, source={"http": {"url": url}}, **spec)
    op.keep(made)
    return made


def away(web: WebServer, name: str) -> None:
    """Let the server answer nothing but 503."""
    for file in FILES:
        web.before[f"/{name}/{file}"] = lambda _: 503


async def test_an_engine_that_comes_while_the_source_is_away_is_filled_by_a_neighbour(
    volume: Path, tmp_path: Path, web: WebServer
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1", listen=f"127.0.0.1:{free_port()}") as b,
        operator(tmp_path, a, b) as op,
    ):
        await b.stop_sidecar()
        sql = await op.apply(remote(op, web, "sql"))
        normalized = next(c for c in sql.status.conditions if c.type == "Normalized")
        away(web, "sql")
        op.forget_sources()  # another operator, which has never seen the source
        await b.start_sidecar()
        link = op.fleet.links.get("u1")
        assert link is not None
        await until(lambda: link.in_contact and link.profile is not None)
        sql = await op.apply(sql)
        assert ready(sql)[:2] == ("True", "Ready")
        assert b.engine.loads == [("team-a/sql", sql.status.digest)]
        assert normalized in sql.status.conditions, "what was said of the files stays"


def paused(made: LoRAAdapter) -> LoRAAdapter:
    """Return the adapter with the annotation that lets a pass look only."""
    metadata = made.metadata.model_copy(update={"annotations": {ANNOTATION_PAUSED: "true"}})
    return made.model_copy(update={"metadata": metadata})


def running(made: LoRAAdapter) -> LoRAAdapter:
    """Return the adapter without it."""
    metadata = made.metadata.model_copy(update={"annotations": {}})
    return made.model_copy(update={"metadata": metadata})


class Hang:
    """Lets a server's answers about an adapter wait until `over`."""

    def __init__(self, web: WebServer, name: str) -> None:
        self.waiting = 0
        self.over = threading.Event()
        for file in FILES:
            web.before[f"/{name}/{file}"] = self._wait

    def _wait(self, _: int) -> None:
        self.waiting += 1
        self.over.wait(60)


async def test_what_may_not_be_served_any_more_goes_without_a_look_at_its_source(
    volume: Path, tmp_path: Path, web: WebServer
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        made = await op.apply(remote(op, web, "sql", servedName="infra/sql"))
        assert a.engine.served.keys() == {"infra/sql"}
        hang = Hang(web, "sql")
        op.forget_sources()
        op.fleet.world.existing["infra"] = ["infra/own"]  # type: ignore[index] # it is somebody's now
        made = await op.apply(made)
        assert (ready(made)[1], a.engine.served, hang.waiting) == ("NotGranted", {}, 0)


async def test_a_pass_does_not_wait_for_a_source_that_hangs_and_comes_again_when_it_answers(
    volume: Path, tmp_path: Path, web: WebServer
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        one = {"policy": "Spread", "replicas": 1}
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]
        low = await op.apply(remote(op, web, "low", placement=one))
        said = {c.type: (c.status, c.message) for c in low.status.conditions}
        hang = Hang(web, "low")
        op.forget_sources()
        low = await op.apply(low)
        assert hang.waiting > 0
        assert ready(low)[:2] == ("True", "Ready")
        assert {c.type: (c.status, c.message) for c in low.status.conditions} == said

        await op.apply(op.adapter("high", priority=1, placement=one))
        low = await op.apply(low)  # gives its place up while its source still hangs
        assert ready(low)[1] == "Preempted"
        assert a.engine.served.keys() == {"team-a/high"}

        woken = Sleeper()
        op.fleet.wakeups.add(low.key, woken)
        hang.over.set()
        async with asyncio.timeout(60):
            await woken.woken.wait()
        asked = len(web.requests)
        low = await op.apply(low)
        assert len(web.requests) == asked, "the pass has what was read meanwhile"
        assert not op.fleet.readers.has(low.metadata.uid)
        assert op.fleet.sources._held == {}, "and no place is left taken"


async def test_a_transfer_in_the_middle_ends_when_the_plan_gives_the_engine_to_another(
    volume: Path, tmp_path: Path, web: WebServer
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        one = {"policy": "Spread", "replicas": 1}
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]
        low = await op.apply(paused(remote(op, web, "low", placement=one)))  # knows the source now
        hang = Hang(web, "low")
        passes: list[asyncio.Task[LoRAAdapter]] = []

        async def one_pass(uid: str, place: Turn) -> Outcome:
            passes.append(asyncio.create_task(op.apply(running(low))))
            await passes[-1]
            return Outcome(well=True, interval=600)

        rounds = Rounds(one_pass, wakeups=op.fleet.wakeups, settings=op.fleet.settings)
        rounds.add(low.metadata.uid, low.key)
        rounds.start()
        await until(lambda: hang.waiting > 0)
        high = await op.apply(op.adapter("high", priority=1, placement=one))
        assert ready(high)[:2] == ("True", "Ready")
        await until(lambda: len(passes) > 1 and passes[0].cancelled())
        assert ready(await passes[1])[1] == "Preempted"
        assert a.engine.loads == [("team-a/high", high.status.digest)]
        hang.over.set()
        await rounds.close()


def wider(adapter: Path, folder: Path) -> Path:
    """Write the adapter with four times its rank in float32: a file of several chunks."""
    tensors = load_file(adapter / FILES[1])
    folder.mkdir()
    save_file(
        {
            name: torch.cat([each.float()] * 4, dim=0 if ".lora_A." in name else 1)
            for name, each in tensors.items()
        },
        folder / FILES[1],
    )
    config = json.loads((adapter / FILES[0]).read_text())
    (folder / FILES[0]).write_text(json.dumps({**config, "r": 4 * config["r"]}))
    return folder


class Drip:
    """Lets nothing of an adapter's weights come from byte `START` on until `over`."""

    START = 140_000

    def __init__(self, web: WebServer, name: str) -> None:
        self.asked: Counter[int] = Counter()
        """How often a read began at a byte."""
        self.over = threading.Event()
        web.before[f"/{name}/{FILES[1]}"] = self._wait

    @property
    def waiting(self) -> bool:
        return any(first >= self.START for first in self.asked)

    def _wait(self, first: int) -> None:
        self.asked[first] += 1
        if first >= self.START:
            self.over.wait(120)


async def test_a_slow_source_leaves_its_place_when_another_waits_and_goes_on_from_there_later(
    volume: Path, tmp_path: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "Limits", partial(Limits, patience_seconds=0.5))
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        op.fleet.settings = replace(op.fleet.settings, chunk_bytes=1 << 16)
        op.fleet.transfers = FairPlaces(2, each=1)
        drip = Drip(web, "slow")
        made = remote(op, web, "slow")
        web.put("/slow", wider(CASES / "d01-plain-bf16", tmp_path / "wider"))
        slow = asyncio.create_task(op.apply(made))
        await until(lambda: drip.waiting)
        others = [asyncio.create_task(op.fleet.transfers.take("other")) for _ in range(2)]
        await asyncio.wait({slow}, timeout=2)
        assert not slow.done(), "while nobody waits who would have the place any pace will do"
        others[1].cancel()

        quick = await op.apply(op.adapter("quick"))
        assert ready(quick)[:2] == ("True", "Ready")
        made = await slow
        assert ready(made)[1] == "SourceUnavailable"
        assert "adapter team-a/slow: the source gave " in ready(made)[2]
        assert op.fleet.transfers._free == 1

        drip.over.set()
        known = {at for at in drip.asked if 1 << 16 < at < Drip.START}
        assert known
        made = await op.apply(made)
        assert ready(made)[:2] == ("True", "Ready")
        assert {drip.asked[at] for at in known} == {1}, "what the engine has is not read again"


async def apply_while_another_waits(op: Operator, made: LoRAAdapter) -> LoRAAdapter:
    """Run one pass; another tenant wants the place among transfers meanwhile, and has it then."""
    transfer = asyncio.create_task(op.apply(made))
    await until(lambda: transfer.done() or not op.fleet.transfers._free)
    other = asyncio.create_task(op.fleet.transfers.take("other"))
    made = await transfer
    await other
    op.fleet.transfers.give_back("other")
    return made


async def test_a_slow_source_that_is_read_from_its_beginning_each_time_comes_to_its_end(
    volume: Path, tmp_path: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "Limits", partial(Limits, patience_seconds=0.1))
    files = {
        f.name: f.read_bytes() for f in wider(CASES / "d01-plain-bf16", tmp_path / "w").iterdir()
    }
    web.files |= artifact(files, "team/sql", "v1")
    one_at_a_time, attempts = threading.Lock(), 0

    def slow(first: int) -> None:
        if first:
            with one_at_a_time:
                threading.Event().wait(0.3)

    web.before[f"/v2/team/sql/blobs/sha256:{sha256(files[FILES[1]]).hexdigest()}"] = slow
    reference = f"{web.url.removeprefix('http://')}/team/sql:v1"
    made = built("sql", source={"oci": {"reference": reference, "plainHttp": True}})
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        op.fleet.settings = replace(op.fleet.settings, chunk_bytes=1 << 16)
        op.fleet.transfers = FairPlaces(1)
        op.keep(made)
        while not (made.status.conditions and ready(made)[1] == "Ready"):
            attempts += 1
            assert attempts < 8, "it gets nowhere"
            made = await apply_while_another_waits(op, made)
        assert attempts > 1, "others had the place meanwhile"
