"""What is kept of a manifest once it has been read, and how far a push is read ahead."""

from __future__ import annotations

import asyncio

from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet_operator.push.stream import ReadAhead, without_content

VALUES = {str: "some", int: 7, bool: True}


def test_of_a_manifest_all_but_its_content_is_kept() -> None:
    content = pb.PushManifest(
        adapter_config=b"{}", safetensors_header=b"{}", tensor_digests=[bytes(32)]
    )
    large = {field.name for field, _ in content.ListFields()}
    named = pb.PushManifest()
    for field in pb.PushManifest.DESCRIPTOR.fields:
        if field.name not in large:
            setattr(named, field.name, VALUES[type(getattr(named, field.name))])
    whole = pb.PushManifest()
    whole.MergeFrom(named)
    whole.MergeFrom(content)
    assert without_content(whole) == named


class Stream:
    """Requests, and then nothing; counts how many were asked for."""

    def __init__(self, *requests: pb.PushRequest) -> None:
        self.left = list(requests)
        self.asked = 0

    async def read(self) -> pb.PushRequest:
        self.asked += 1
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop(0)


def piece(number: int) -> pb.PushRequest:
    return pb.PushRequest(bytes=pb.PushedBytes(tensor=number, data=b"x"))


COMMIT = pb.PushRequest(commit=pb.CommitPush())


async def test_one_piece_is_read_while_the_last_is_worked_on_and_none_after_the_commit() -> None:
    stream = Stream(piece(0), piece(1), piece(2), COMMIT)
    async with ReadAhead(stream) as requests:
        for number in range(3):
            assert (await requests.next()).bytes.tensor == number
            for _ in range(10):  # as long as it is worked on
                await asyncio.sleep(0)
            assert stream.asked == number + 2
        assert await requests.next() == COMMIT
        await asyncio.sleep(0)
        assert stream.asked == 4


async def test_nothing_is_read_any_more_once_a_push_has_ended() -> None:
    stream = Stream(piece(0))
    async with ReadAhead(stream) as requests:
        await requests.next()
        await asyncio.sleep(0)
    assert stream.asked == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
