"""Trainers push revisions to a real operator, which asks a real API server who they are."""

from __future__ import annotations

import shutil

import grpc.aio
import pytest
from push_rig import ADAPTERS, Scene, scene
from pushing import PUSH_RULES, BrokenOff, Content, Trainer, account, token

__all__ = ["scene"]


async def test_pushes_are_served_send_what_changed_and_outlive_the_operator(scene: Scene) -> None:
    trainer = scene.trainer()
    first = await trainer.push(Content.of(1, 2), 10)
    assert (first.received_bytes, first.unchanged, trainer.sent) == (128, False, [0, 1])
    await scene.served(first.revision)
    spec = scene.adapter()["spec"]
    assert spec["source"] == {
        "push": {"revision": first.revision, "step": 10},
        "pollIntervalSeconds": 60,
    }
    assert spec["poolRef"] == {"name": "pool"}

    second = await trainer.push(Content.of(1, 3), 11)
    assert (second.received_bytes, trainer.sent[2:]) == (64, [1])
    await scene.served(second.revision)
    again = await trainer.push(Content.of(1, 3), 12)
    assert (again.received_bytes, again.unchanged) == (0, True)
    assert again.revision == second.revision
    assert scene.adapter()["spec"]["source"]["push"]["step"] == 12

    # A new operator without the other's disk: engines serve what they have until the next push.
    scene.stop()
    shutil.rmtree(scene.root)
    unloads = scene.fleet.books.unloads
    scene.start()
    third = await trainer.push(Content.of(4, 3), 13)
    assert third.received_bytes == 128, "what the operator kept is gone with its disk"
    await scene.served(third.revision)
    await scene.fleet.add("engine-2")
    await scene.served(third.revision)
    assert scene.fleet.books.unloads == unloads


async def test_a_push_that_breaks_changes_nothing_and_goes_on_where_it_broke(scene: Scene) -> None:
    trainer = scene.trainer()
    first = await trainer.push(Content.of(1, 2), 1)
    with pytest.raises(BrokenOff):
        await trainer.push(Content.of(3, 4), 2, stop_after=1, arrived=scene.has_a_whole_tensor)
    assert scene.adapter()["spec"]["source"]["push"]["revision"] == first.revision
    assert scene.kept() == [first.revision.removeprefix("sha256:")]
    second = await trainer.push(Content.of(3, 4), 2)
    assert trainer.sent == [0, 1, 0, 1, 1], "the tensor that came whole is not asked for again"
    assert second.received_bytes == 64
    await scene.served(second.revision)


async def test_who_may_not_push_is_refused_before_anything_is_kept(scene: Scene) -> None:
    kube, own = scene.kube, scene.namespace
    account(kube, own, "reader", PUSH_RULES[1:])
    other = f"{own}-b"
    kube.create("/api/v1/namespaces", {"metadata": {"name": other}})
    account(kube, other, "trainer", PUSH_RULES)
    account(kube, own, "gone", PUSH_RULES)
    stolen = token(kube, own, "gone")
    kube.delete(f"/api/v1/namespaces/{own}/serviceaccounts/gone")
    refused = {
        "no token": "",
        "nonsense": "abc.def.ghi",
        "for another audience": token(kube, own, "trainer", "elsewhere"),
        "of a reader": token(kube, own, "reader"),
        "of another namespace": token(kube, other, "trainer"),
        "of an account that was deleted": stolen,
    }
    for what, given in refused.items():
        trainer = Trainer(scene.address, given, own)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await trainer.push(Content.of(1, 2))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, what
        assert given not in str(caught.value.details()) or not given
    assert scene.kept() == []
    assert not (scene.root / own).exists()
    found = kube.get(f"/api/v1/namespaces/{own}/events")["items"]
    lines = [each["message"] for each in found if each["reason"] == "PushRefused"]
    assert any("carries no token" in line for line in lines)
    assert any("not valid for audience lorafleet" in line for line in lines)
    assert any(f"system:serviceaccount:{other}:trainer may not create" in line for line in lines)
    assert not any(stolen in line for line in lines)
    log = scene.operator.process.log.read_text()
    assert not [what for what, given in refused.items() if given and given in log]


async def test_an_adapter_that_the_api_server_refuses_costs_no_byte_and_one_that_went_comes_again(
    scene: Scene,
) -> None:
    trainer = scene.trainer()
    place = f"{ADAPTERS}/{scene.namespace}/loraadapters"
    first = await trainer.push(Content.of(1, 2), 1)
    other = Trainer(scene.address, trainer.token, scene.namespace, "second", pool="x" * 300)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await other.push(Content.of(3, 4), 1)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert other.sent == [], "the API server was asked before a byte came"
    scene.kube.delete(f"{place}/rl")
    await scene.fleet.until(lambda: not scene.kube.get(place)["items"], 60)
    again = await trainer.push(Content.of(1, 2), 2)
    assert again.revision == first.revision
    await scene.served(again.revision)
