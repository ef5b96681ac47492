"""Certificates and their authority are replaced under way: nothing fails, nothing restarts."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from certificates import Authority, MountedSecret
from fake_engine import Behaviour
from fanout_rig import CountedSource
from lorafleet.certificates import CertificateFiles, Certificates
from lorafleet.errors import EngineUnreachable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer import links as links_module
from lorafleet_operator.transfer.client import SidecarClient, Tls
from lorafleet_operator.transfer.fanout import Target, spread
from lorafleet_operator.transfer.links import Endpoint, EngineLink, Links
from lorafleet_operator.transfer.streaming import Limits
from sidecar_rig import Rig
from staging_builders import engine_profile, source_adapter
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

POOL = "demo.engines.lorafleet"
LIMITS = Limits(window_chunks=4, stall_seconds=120, commit_seconds=120)
MOST_SEEDS = 6


@dataclass
class Fleet:
    """Two sidecars that form chains, an operator's links to them, and the Secrets of all."""

    authority: Authority
    kind: str | None = "one profile"
    rigs: dict[str, Rig] = field(default_factory=dict)
    engines: list[MountedSecret] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rounds: int = 0

    def watch(self, operator: MountedSecret) -> None:
        self.operator = operator
        self.files = CertificateFiles(operator.folder)
        self.links = Links(
            certificates=self.files,
            renewal_seconds=0.02,
            heartbeat_seconds=5,
            on_change=self._changed,
        )
        self.links.sync(
            [
                Endpoint(f"demo/{uid}", uid, "127.0.0.1", rig.sidecar.port, POOL)
                for uid, rig in self.rigs.items()
            ],
            set(self.rigs),
        )

    def _changed(self, link: EngineLink, _: pb.Inventory | None) -> None:
        if link.inventory is not None and not link.in_contact:
            self.lost.append(link.problem)

    def link(self, uid: str) -> EngineLink:
        found = self.links.get(uid)
        assert found is not None
        return found

    def targets(self) -> dict[str, Target]:
        return {uid: Target(self.link(uid).client, kind=self.kind) for uid in self.rigs}

    async def rounds_for_ever(self) -> None:
        """Send an adapter to both engines along a chain, load it there, unload it; again."""
        while True:
            adapter = source_adapter(self.rounds % MOST_SEEDS)
            results = await spread(CountedSource(adapter).payload(), self.targets(), LIMITS)
            for uid, result in results.items():
                try:
                    if not isinstance(result, pb.StagedRevision):
                        raise result
                    load = pb.LoadAdapterRequest(
                        adapter="demo/x", served_name="demo/x", digest=result.digest,
                        loader="direct", publish=True,
                    )  # fmt: skip
                    await self.link(uid).client.load(load, 120)
                    drop = pb.UnloadAdapterRequest(
                        adapter="demo/x", served_name="demo/x", drop_staged=True
                    )
                    await self.link(uid).client.unload(drop, 120)
                except Exception as error:
                    self.failures.append(f"{uid}: {error!r}")
            self.rounds += 1

    async def renewed(self) -> None:
        """Wait until all links use what the operator's files hold, and rounds have followed."""
        await until(
            lambda: all(
                link._tls is not None and link._tls.certificates is self.files.current()
                for link in self.links.all()
            )
        )
        after = self.rounds + 2
        await until(lambda: self.rounds >= after)


@pytest.fixture
async def fleet(volume: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(links_module, "RENEWAL_SPREAD_SECONDS", 0.02)
    old = Authority("this year")
    made = Fleet(old)
    profile = json.loads(engine_profile().to_json())
    async with AsyncExitStack() as stack:
        for uid in ("pod-0", "pod-1"):
            (volume / uid).mkdir()
            secret = MountedSecret(volume / uid / "tls", old.files("sidecar", POOL))
            made.engines.append(secret)
            made.rigs[uid] = await stack.enter_async_context(
                Rig(
                    volume / uid,
                    Behaviour(profile=profile),
                    tls_dir=secret.folder,
                    peer_name=POOL,
                    pod_uid=uid,
                )
            )
        made.watch(MountedSecret(volume / "operator", old.files("operator")))
        stack.push_async_callback(made.links.close)
        await until(lambda: all(link.profile is not None for link in made.links.all()))
        yield made


async def test_leaves_and_the_authority_change_while_transfers_loads_and_watches_run(
    fleet: Fleet,
) -> None:
    old, new = fleet.authority, Authority("next year")
    both = old.certificate + new.certificate
    held, begun = asyncio.Event(), asyncio.Event()

    async def hold(number: int) -> None:
        if number == 3:
            begun.set()
            await held.wait()

    slow = CountedSource(source_adapter(100), hold)
    transfer = asyncio.create_task(spread(slow.payload(), fleet.targets(), LIMITS))
    work = asyncio.create_task(fleet.rounds_for_ever())
    await begun.wait()
    clients = {uid: fleet.link(uid).client for uid in fleet.rigs}

    def files(who: str, issuer: Authority, ca: bytes) -> dict[str, bytes]:
        names = (POOL,) if who == "sidecar" else ()
        return {**issuer.files(who, *names), "ca.crt": ca}

    steps = [
        (old, old.certificate),  # leaves alone
        (old, both),  # everybody learns the new authority
        (new, both),  # then gets its certificates
        (new, new.certificate),  # then forgets the old one
    ]
    everyone = [("sidecar", secret) for secret in fleet.engines] + [("operator", fleet.operator)]
    for issuer, ca in steps:
        random.Random(len(ca)).shuffle(everyone)
        for who, secret in everyone:
            fresh = files(who, issuer, ca)
            secret.swap({**fresh, "tls.key": files(who, issuer, ca)["tls.key"]})
            await asyncio.sleep(0.05)  # a pair that does not match is there for a while
            secret.swap(fresh)
        await fleet.renewed()

    held.set()
    results = await transfer
    assert {uid: type(result) for uid, result in results.items()} == dict.fromkeys(
        fleet.rigs, pb.StagedRevision
    )
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert fleet.failures == []
    assert fleet.lost == []
    assert fleet.rounds >= 2 * len(steps)
    for uid, rig in fleet.rigs.items():
        assert len(rig.engine.loads) >= fleet.rounds
        assert fleet.link(uid).client is clients[uid]
        assert rig.sidecar.certificates is not None
        assert rig.sidecar.certificates.current().ca == new.certificate
        served = await asyncio.to_thread(
            ssl.get_server_certificate, ("127.0.0.1", rig.sidecar.port)
        )
        assert served.encode().split() == rig.sidecar.certificates.current().certificate.split()
        past = files("operator", old, both)
        tls = Tls(Certificates(past["ca.crt"], past["tls.key"], past["tls.crt"], 0, 0, 0), POOL)
        former = SidecarClient("127.0.0.1", rig.sidecar.port, tls)
        with pytest.raises(EngineUnreachable):
            await former.inventory(5)
        await former.close()


async def test_an_authority_that_one_side_does_not_know_yet_costs_no_contact(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.kind = None  # without an overlap of authorities a neighbour may be dialled too early
    new = Authority("next year")
    work = asyncio.create_task(fleet.rounds_for_ever())
    before = fleet.files.current()
    fleet.operator.swap(new.files("operator"))
    await until(lambda: fleet.files.current() is not before)
    await until(lambda: caplog.text.count("does not take the renewed certificates yet") == 2)
    after = fleet.rounds + 2
    await until(lambda: fleet.rounds >= after)
    for secret in fleet.engines:
        secret.swap(new.files("sidecar", POOL))
    await fleet.renewed()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert fleet.failures == []
    assert fleet.lost == []
    assert caplog.text.count("does not take the renewed certificates yet") == 2
