"""Pushes at once, broken off anywhere, by those who may not, and without an API server."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.grpc_errors import REASON_KEY
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from lorafleet_operator.push import access
from lorafleet_operator.push.shelf import cost
from psutil import Process
from push_door import Door, door
from pushing import MODULE, Content
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path / "pushed") as made:
        yield made


def reason(error: grpc.aio.AioRpcError) -> str:
    return str(dict(error.trailing_metadata() or ()).get(REASON_KEY, ""))


async def refused(pushing: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pushing
    return caught.value


async def test_a_later_push_takes_the_place_of_one_that_goes_on(there: Door) -> None:
    slow = there.trainer()
    async with slow.channel() as channel:
        call = pb_grpc.PushServiceStub(channel).Push(metadata=slow.metadata)
        manifest = slow.manifest(Content.of(1, 2), 7)
        await call.write(pb.PushRequest(manifest=manifest))
        assert (await call.read()).accepted.missing == [0, 1]
        done = await there.trainer().push(Content.of(3, 4), 3)
        error = await refused(call.read())
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION, "which nobody tries again"
    assert reason(error) == "Overtaken"
    assert error.details() == (
        "team-a/rl: a push of step 3 by system:serviceaccount:team-a:trainer took its place"
    )
    assert there.named() == done.revision
    assert not [each for each in there.files() if ".part" in each]


async def test_a_push_that_is_being_named_is_over_before_the_next_begins(there: Door) -> None:
    await there.trainer().push(Content.of(1, 2), 1)
    there.reviews.writes.clear()
    first = asyncio.create_task(there.trainer().push(Content.of(3, 4), 2))
    top = there.root / "team-a/rl/revisions"
    await until(lambda: len(list(top.iterdir())) == 2)
    others = [asyncio.create_task(there.trainer().push(Content.of(5, n), n)) for n in range(3, 6)]
    await until(lambda: there.reviews.asked == 5)
    there.reviews.writes.set()
    ended = await asyncio.gather(first, *others, return_exceptions=True)
    committed = [each for each in ended if isinstance(each, pb.PushCommitted)]
    assert there.named() in {each.revision for each in committed}
    assert {reason(e) for e in ended if isinstance(e, grpc.aio.AioRpcError)} <= {"Overtaken"}
    assert len(list(top.iterdir())) <= 3
    assert there.spool.used_bytes() == cost(there.root / "team-a/rl", parts=True)


async def test_pushes_that_break_off_anywhere_keep_no_place_file_or_room(there: Door) -> None:
    chance = random.Random(8)

    async def storm(name: str) -> None:
        trainer = there.trainer(name=name)
        for step in range(25):
            content = Content({f"{MODULE}.lora_A.weight": chance.randbytes(64)})
            pushing = asyncio.create_task(trainer.push(content, step))
            await asyncio.wait([pushing], timeout=chance.choice((0.001, 0.005, 0.01, 0.02, 5)))
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)

    await asyncio.gather(*(storm(name) for name in "abc"))
    for name in "abc":
        content = Content.of(ord(name), 9)
        done = await there.trainer(name=name).push(content, 99)
        assert there.named(name) == done.revision
        folder = there.root / "team-a" / name
        assert len(list((folder / "revisions").iterdir())) <= 3
        assert not list((folder / "data").glob("*.part*"))
    folders = (there.root / "team-a").iterdir()
    assert there.spool.used_bytes() == sum(cost(each, parts=True) for each in folders)
    open_files = [each.path for each in Process().open_files()]
    assert not [each for each in open_files if each.startswith(str(there.root))]


async def test_an_api_server_that_does_not_answer_lets_nobody_in_and_others_go_on(
    there: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = there.trainer()
    async with inside.channel() as channel:
        call = pb_grpc.PushServiceStub(channel).Push(metadata=inside.metadata)
        content = Content.of(1, 2)
        await call.write(pb.PushRequest(manifest=inside.manifest(content, 1)))
        await call.read()
        monkeypatch.setattr(access, "_PATIENCE_SECONDS", 0.5)
        there.reviews.answers.clear()
        errors = await asyncio.gather(
            *(refused(there.trainer().push(content, 2)) for _ in range(9))
        )
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert {error.details() for error in errors} == {
            "the API server did not say in 0.5 s who may push"
        }
        for index, data in enumerate(content.tensors.values()):
            piece = pb.PushedBytes(tensor=index, offset=0, data=data)
            await call.write(pb.PushRequest(bytes=piece))
        await call.write(pb.PushRequest(commit=pb.CommitPush()))
        assert (await call.read()).committed.revision == there.named()


async def test_who_has_no_right_is_refused_without_a_message_and_told_of_once(there: Door) -> None:
    for token in ("", "bad", "x" * 4000):
        for _ in range(2):
            error = await refused(there.trainer(token).push(Content.of(1, 2)))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    said = [each["message"] for each in there.reviews.events]
    assert said == [
        "push of rl: the call carries no token (authorization: Bearer ...)",
        "push of rl: the token is not valid for audience lorafleet",
    ]
    for number in range(300):
        await refused(there.trainer("bad", name=f"a{number}").push(Content.of(1, 2)))
    silent = there.trainer("bad")
    async with silent.channel() as channel:
        call = pb_grpc.PushServiceStub(channel).Push(metadata=silent.metadata)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    assert len(there.reviews.events) == 2
    assert there.files() == []


async def test_slow_trainers_of_one_namespace_leave_places_to_others(there: Door) -> None:
    there.reviews.users["other"] = "system:serviceaccount:team-b:trainer"
    slow = there.trainer()
    async with slow.channel() as channel:
        calls = [pb_grpc.PushServiceStub(channel).Push(metadata=slow.metadata) for _ in range(20)]
        for number, call in enumerate(calls):
            manifest = slow.manifest(Content.of(1, 2), 1, name=f"slow-{number}")
            await call.write(pb.PushRequest(manifest=manifest))
        reads = [asyncio.create_task(call.read()) for call in calls]
        await until(lambda: sum(each.done() for each in reads) == 2)
        await there.trainer("other").push(Content.of(3, 4), 1)
        assert sum(each.done() for each in reads) == 2
        for call in calls:
            call.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    await there.trainer().push(Content.of(5, 6), 2)
    assert not [each for each in there.files() if "slow-" in each and "revisions" in each]


async def test_a_full_disk_refuses_a_push_gives_back_what_it_took_and_takes_the_next(
    tmp_path: Path,
) -> None:
    mount = 'mount -t tmpfs -o size=1m none "$0" && exec "$@" "$0"'
    script = Path(__file__).parents[1] / "push_full_disk.py"
    done = await asyncio.to_thread(
        subprocess.run,
        ["unshare", "-rm", "sh", "-c", mount, tmp_path, sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip("this kernel lends nobody a namespace of mounts")
    line = "the operator's disk for pushes is full: No space left on device 4"
    assert done.stdout.splitlines() == [line, line, "True", "True 8"], done.stderr


async def test_a_folder_that_is_lost_meanwhile_is_made_again(there: Door) -> None:
    first = await there.trainer().push(Content.of(1, 2), 1)
    shutil.rmtree(there.root)
    trainer = there.trainer()
    again = await trainer.push(Content.of(1, 2), 2)
    assert (again.revision, again.unchanged, trainer.sent) == (first.revision, True, [0, 1])
    shutil.rmtree(there.root)
    there.root.write_text("a file in its place")
    error = await refused(there.trainer().push(Content.of(3, 4), 3))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the operator's disk for pushes: Not a directory"
    there.root.unlink()
    await there.trainer().push(Content.of(3, 4), 3)


async def test_an_adapter_that_goes_or_changes_meanwhile_is_not_touched(there: Door) -> None:
    def deleted() -> None:
        del there.reviews.adapters["rl"]

    def made_again() -> None:
        there.reviews.adapters["rl"]["metadata"] |= {"uid": "another", "resourceVersion": "77"}

    def of_a_bucket() -> None:
        body = there.reviews.adapters["rl"]
        body["spec"]["source"] = {"s3": {"bucket": "b"}}
        body["metadata"]["resourceVersion"] = "78"

    for change, line in (
        (deleted, "gone"),
        (made_again, "the LoRAAdapter was deleted while its revision came"),
        (of_a_bucket, "the LoRAAdapter has another source than push by now"),
    ):
        there.reviews.adapters.pop("rl", None)
        await there.trainer().push(Content.of(1, 2), 1)
        before: list[Any] = []

        def at(moment: str, change: Any = change, before: list[Any] = before) -> None:
            if moment == "accepted":
                change()
                before.append(copy.deepcopy(there.reviews.adapters))

        error = await refused(there.trainer(reached=at).push(Content.of(5, 6), 2))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == line
        assert [there.reviews.adapters] == before
    error = await refused(there.trainer().push(Content.of(7, 8), 3))
    assert error.details() == "LoRAAdapter team-a/rl has source s3, a push needs source.push"
