"""Engines are sent a push while it still comes in, and nothing of it counts before it has committed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import grpc.aio
import httpx
import pytest
from kube_rest import KubeRest
from operator_chain import BASE, CASES, Chain
from prometheus_client.parser import text_string_to_metric_families
from pushing import PUSH_RULES, BrokenOff, Content, Trainer, account, token
from servers import free_port
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
ENGINE = "engine-0"
RANK = 64
SMALL = {"LORAFLEET_CHUNK_BYTES": str(64 << 10), "LORAFLEET_WINDOW_CHUNKS": "2"}
TWO = (("one", "d01-plain-bf16"), ("another", "d02-all-fp32"))
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SHARE = 0.3
"""Of the bytes, which engines have before half of the tensors have come: read-ahead holds the rest."""


@dataclass
class Large(Content):
    """A revision of a mebibyte in 28 tensors, of random numbers by its seed."""

    @classmethod
    def made(cls, seed: int) -> Large:
        case = (CASES / "d01-plain-bf16" / "adapter_model.safetensors").read_bytes()
        header = json.loads(case[8 : 8 + int.from_bytes(case[:8], "little")])
        numbers = random.Random(seed)
        names = [name for name in header if name != "__metadata__"]
        shapes = {name: cls.shape(name, header[name]["shape"]) for name in names}
        tensors = {
            name: bytes(
                each if at % 2 else each & 0x3F  # finite as bfloat16, whose high byte is second
                for at, each in enumerate(numbers.randbytes(2 * rows * columns), 1)
            )
            for name, (rows, columns) in shapes.items()
        }
        return cls(tensors, BASE)

    @staticmethod
    def shape(name: str, small: list[int]) -> list[int]:
        return [RANK, small[1]] if "lora_A" in name else [small[0], RANK]

    @property
    def size(self) -> int:
        return sum(map(len, self.tensors.values()))

    @property
    def half(self) -> int:
        return len(self.tensors) // 2

    @property
    def config(self) -> bytes:
        found = json.loads((CASES / "d01-plain-bf16" / "adapter_config.json").read_text())
        return json.dumps({**found, "r": RANK}).encode()

    @property
    def header(self) -> bytes:
        entries, at = {}, 0
        for name, data in self.tensors.items():
            other = len(data) // 2 // RANK
            shape = [RANK, other] if "lora_A" in name else [other, RANK]
            entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        return json.dumps(entries).encode()


class Scene:
    """One engine, an operator that takes pushes, and an adapter that serves its first one."""

    def __init__(self, chain: Chain, directory: Path) -> None:
        self.chain = chain
        self.address = f"127.0.0.1:{free_port()}"
        self.settings = {
            "LORAFLEET_PUSH_LISTEN": self.address,
            "LORAFLEET_PUSH_DIR": str(directory / "pushed"),
            **SMALL,
        }
        self.first = Large.made(0)

    async def start(self, **settings: str) -> Trainer:
        chain = self.chain
        chain.start_engine(ENGINE, 0, "--profile", json.dumps({"max_lora_rank": RANK}))
        chain.pool()
        chain.start_operator(**self.settings, **settings)
        with KubeRest(chain.kubeconfig) as kube:
            account(kube, chain.namespace, "trainer", PUSH_RULES)
            text = token(kube, chain.namespace, "trainer")
        trainer = Trainer(self.address, text, chain.namespace, piece_bytes=64 << 10)
        made = await trainer.push(self.first, 1)
        await until(lambda: self.serves(made.revision))
        assert self.received == self.first.size
        return trainer

    def serves(self, revision: str) -> bool:
        return self.chain.status("rl").get("fingerprint") == revision and self.chain.ready("rl")

    def at_half(
        self,
        new: Large,
        then: Callable[[], Awaitable[object]] | None = None,
        seconds: float = 120.0,
    ) -> Callable[[int], Awaitable[None]]:
        """Return what a trainer does before each tensor: at half of them it waits until the engine is
        sent what has come, for so many seconds, and does `then`."""
        sent = self.sent

        async def before(count: int) -> None:
            if count == new.half:
                await until(lambda: self.sent - sent > SHARE * new.size, seconds)
                if then is not None:
                    await then()

        return before

    async def dies_at_half(self, trainer: Trainer, new: Large) -> None:
        """Push until half of it has come and the engine is sent that, and break off."""
        sent = self.sent
        with pytest.raises(BrokenOff):
            await trainer.push(
                new, 2, stop_after=new.half, arrived=lambda: self.sent - sent > SHARE * new.size
            )
        await self.ends_a_transfer()

    async def ends_a_transfer(self) -> None:
        """Wait until the transfer that the first push is followed by has ended: bytes count then."""
        await until(lambda: self.received > self.first.size)

    async def have(self, *adapters: tuple[str, str]) -> None:
        """Apply adapters of (name, case), one after the other, each until it is ready."""
        for name, case in adapters:
            self.chain.adapter(name, case)
            await until(lambda name=name: self.chain.ready(name), 30)  # type: ignore[misc]

    @property
    def received(self) -> int:
        return int(self.sidecar("lorafleet_sidecar_received_bytes_total"))

    @property
    def sent(self) -> int:
        assert self.chain.operator is not None
        url = self.chain.operator.metrics_url
        return int(read(url, "lorafleet_operator_transfer_bytes_total"))

    @property
    def reserved(self) -> int:
        return int(self.sidecar("lorafleet_sidecar_staging_bytes", state="reserved"))

    @property
    def in_use(self) -> int:
        return int(self.sidecar("lorafleet_sidecar_staging_in_use_bytes"))

    def sidecar(self, name: str, **labels: str) -> float:
        return read(self.chain.sidecars[ENGINE].metrics_url, name, **labels)

    def told(self) -> object:
        """What people, engines and clients know of the adapter."""
        chain, name = self.chain, f"{self.chain.namespace}/rl"
        found = chain.get("rl")
        answer = chain.answer(ENGINE, name)
        assert answer
        return (
            found["spec"],
            found["status"],
            chain.loads(ENGINE),
            chain.moves(ENGINE, name),
            answer,
        )


def read(url: str, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(url, timeout=60).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.fixture
def scene(chain: Chain, tmp_path: Path) -> Scene:
    return Scene(chain, tmp_path)


async def test_what_comes_is_sent_on_at_once_and_counts_when_all_of_it_has_committed(
    scene: Scene,
) -> None:
    trainer = await scene.start()
    new, told, sent = Large.made(1), scene.told(), scene.sent
    looked = 0

    async def before(count: int) -> None:
        nonlocal looked
        if count in (new.half, len(new.tensors)):
            share = SHARE if count == new.half else 1 - SHARE
            await until(lambda: scene.sent - sent > share * new.size)
            assert scene.sent - sent <= new.size * count / len(new.tensors) + (64 << 10)
            assert scene.reserved >= new.size
            assert scene.told() == told, "nothing is told or done before the commit"
            looked += 1

    made = await trainer.push(new, 2, before=before)
    assert looked == 2
    await until(lambda: scene.serves(made.revision))
    assert scene.chain.loads(ENGINE) == 2
    assert scene.received == scene.first.size + new.size, "it was sent once"
    assert scene.reserved == 0


async def test_of_a_trainer_that_dies_half_way_the_next_push_goes_on_and_nothing_leaks(
    scene: Scene,
) -> None:
    trainer = await scene.start()
    new, told, in_use = Large.made(1), scene.told(), scene.in_use
    await scene.dies_at_half(trainer, new)
    assert scene.told() == told
    made = await trainer.push(new, 2)
    await until(lambda: scene.serves(made.revision))
    assert scene.received == scene.first.size + new.size, "it was sent once in all"
    await until(lambda: (scene.reserved, scene.in_use) == (0, in_use))


async def test_wrong_bytes_never_reach_an_engine_and_another_push_takes_the_place(
    scene: Scene,
) -> None:
    scene.chain.arena_bytes = 4 << 20  # one that serves, one that comes
    trainer = await scene.start()
    new, told = Large.made(1), scene.told()
    wrong = Large.made(1)
    name = list(wrong.tensors)[new.half]
    wrong.tensors[name] = bytes(len(wrong.tensors[name]))

    with pytest.raises(grpc.aio.AioRpcError, match=f"{name} has digest"):
        await trainer.push(wrong, 2, tensor_digests=new.digests, before=scene.at_half(new))
    await scene.ends_a_transfer()
    assert scene.received < scene.first.size + new.size * (new.half + 1) / len(new.tensors)
    assert scene.told() == told
    other = Large.made(2)
    made = await trainer.push(other, 3)
    await until(lambda: scene.serves(made.revision))
    assert scene.reserved == 0


async def test_an_operator_that_dies_half_way_is_followed_by_one_that_goes_on(
    scene: Scene,
) -> None:
    trainer = await scene.start()
    new, told = Large.made(1), scene.told()

    async def then() -> None:
        assert scene.chain.operator is not None
        scene.chain.operator.process.kill()

    with pytest.raises(grpc.aio.AioRpcError):
        await trainer.push(new, 2, before=scene.at_half(new, then))
    await scene.ends_a_transfer()
    scene.chain.start_operator(**scene.settings)
    await until(lambda: scene.chain.ready("rl"))
    assert scene.told() == told
    made = await trainer.push(new, 2)
    await until(lambda: scene.serves(made.revision))
    assert scene.received == scene.first.size + new.size, "it was sent once in all"


async def test_a_trainer_that_stands_still_holds_up_no_transfer(scene: Scene) -> None:
    trainer = await scene.start(LORAFLEET_TRANSFERS="1")
    new = Large.made(1)

    async def then() -> None:
        scene.chain.adapter("other")
        await until(lambda: scene.chain.ready("other"))

    made = await trainer.push(new, 2, before=scene.at_half(new, then))
    await until(lambda: scene.serves(made.revision))


async def test_an_adapter_that_is_paused_meanwhile_gets_nothing_more(scene: Scene) -> None:
    trainer = await scene.start()
    new = Large.made(1)
    patch = {"metadata": {"annotations": {"lorafleet.dev/paused": "true"}}}

    async def then() -> None:
        scene.chain.custom.patch_namespaced_custom_object(
            *("lorafleet.dev", "v1alpha1", scene.chain.namespace, "loraadapters", "rl", patch)
        )
        await scene.ends_a_transfer()

    made = await trainer.push(new, 2, before=scene.at_half(new, then))
    patch["metadata"]["annotations"]["lorafleet.dev/paused"] = "false"
    scene.chain.custom.patch_namespaced_custom_object(
        *("lorafleet.dev", "v1alpha1", scene.chain.namespace, "loraadapters", "rl", patch)
    )
    await until(lambda: scene.serves(made.revision))
    assert scene.received == scene.first.size + new.size, "it was sent once in all"


async def test_an_adapter_that_people_have_applied_is_sent_what_comes_too(scene: Scene) -> None:
    trainer = await scene.start()
    new = Large.made(1)
    applied = {"metadata": {"annotations": {APPLIED: "{}"}}}
    scene.chain.custom.patch_namespaced_custom_object(
        *("lorafleet.dev", "v1alpha1", scene.chain.namespace, "loraadapters", "rl", applied)
    )

    made = await trainer.push(new, 2, before=scene.at_half(new, seconds=20))
    await until(lambda: scene.serves(made.revision))


async def test_what_a_trainer_that_died_has_left_gives_way_to_an_adapter_that_comes(
    scene: Scene,
) -> None:
    scene.chain.arena_bytes = 6 << 20  # for three
    trainer = await scene.start()
    await scene.dies_at_half(trainer, Large.made(1))
    await scene.have(*TWO)


async def test_what_comes_gives_way_to_an_adapter_that_comes_and_finds_no_room(
    scene: Scene,
) -> None:
    scene.chain.arena_bytes = 6 << 20  # for three
    trainer = await scene.start()
    new = Large.made(1)

    async def then() -> None:
        await scene.have(*TWO)
        scene.chain.delete("loraadapters", "another")

    made = await trainer.push(new, 2, before=scene.at_half(new, then))
    await until(lambda: scene.serves(made.revision))


async def test_what_comes_gives_way_to_an_update_that_finds_no_room(scene: Scene) -> None:
    scene.chain.arena_bytes = 6 << 20  # for three
    trainer = await scene.start()
    scene.chain.adapter("one")
    await until(lambda: scene.chain.ready("one"))
    new, old = Large.made(1), scene.chain.status("one")["digest"]

    async def then() -> None:
        scene.chain.put_source("one", "d02-all-fp32")
        await until(lambda: scene.chain.ready("one", old), 30)

    made = await trainer.push(new, 2, before=scene.at_half(new, then))
    await until(lambda: scene.serves(made.revision))


async def test_who_wants_the_same_content_need_not_wait_for_a_trainer_that_stands_still(
    scene: Scene,
) -> None:
    trainer = await scene.start()
    other = replace(trainer, name="other")
    new = Large.made(1)

    async def then() -> None:
        await other.push(new, 1)
        await until(lambda: scene.chain.ready("other"), 30)

    made = await trainer.push(new, 2, before=scene.at_half(new, then))
    await until(lambda: scene.serves(made.revision))
