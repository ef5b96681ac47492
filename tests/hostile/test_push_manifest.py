"""Manifests and messages that no honest trainer sends: one line each, and nothing on the disk."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.grpc_streams import WrittenCall
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from push_door import Door, door
from pushing import MODULE, Content

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

A, B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"
GOOD = Content.of(1, 2)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path / "pushed") as made:
        yield made


def header(entries: dict[str, Any]) -> dict[str, Any]:
    digests = [bytes(32)] * len(entries)
    return {"safetensors_header": json.dumps(entries).encode(), "tensor_digests": digests}


def entry(begin: int, end: int, *shape: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape or [end - begin], "data_offsets": [begin, end]}


DEEP = b'{"r":' * 100_000
MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a namespace that is a path": ({"namespace": "../team-a"}, "is not a name"),
    "a name that is a path": ({"name": "a/../../b"}, "is not a name"),
    "a name of a megabyte": ({"name": "a" * (1 << 20)}, "is not a name"),
    "no name": ({"name": ""}, "is not a name"),
    "a pool of a megabyte": ({"pool": "p" * (1 << 20)}, "pool has 1048576 characters"),
    "a negative step": ({"step": -1}, "is negative"),
    "no header": ({"safetensors_header": b""}, "header"),
    "a header that is no JSON": ({"safetensors_header": b"{" * 100}, "header"),
    "a header of depth": ({"safetensors_header": b'{"a":' + b"[" * 100_000}, "header"),
    "a tensor twice": (
        {
            "safetensors_header": b'{"a":%s,"a":%s}'
            % tuple(json.dumps(entry(*each)).encode() for each in ((0, 1), (1, 2)))
        },
        "header",
    ),
    "tensors that alias": (header({A: entry(0, 64), B: entry(32, 96)}), "an overlap"),
    "a tensor of 2^62 bytes": (header({A: entry(0, 1 << 62)}), "at most"),
    "a tensor beyond 2^63": (header({A: entry(0, 1 << 64)}), "shape"),
    "a dtype of nobody": (header({A: entry(0, 8, dtype="Q4")}), "unknown dtype Q4"),
    "a name with a line break": (header({"a\nb": entry(0, 1)}), "not printable"),
    "a tensor's name of a megabyte": (header({"a" * (1 << 20): entry(0, 1)}), "too long"),
    "a million tensors": (
        {"safetensors_header": b"{%s}" % b",".join(b'"%x":{}' % n for n in range(1_000_001))},
        "1000000 tensors, at most 100000",
    ),
    "fewer digests": ({"tensor_digests": [bytes(32)]}, "1 digests for 2 tensors"),
    "a short digest": ({"tensor_digests": [bytes(32), bytes(31)]}, "has 31 bytes"),
    "one digest of two sizes": (
        header({A: entry(0, 64), B: entry(64, 65)}),
        "digest of a tensor of another size",
    ),
    "no config": ({"adapter_config": b""}, "adapter_config.json"),
    "a config that is no JSON": ({"adapter_config": b"\x80\x04pickle"}, "adapter_config.json"),
    "a config of depth": ({"adapter_config": DEEP}, "adapter_config.json"),
    "a config of two megabytes": ({"adapter_config": b" " * (2 << 20)}, "at most 1048576"),
    "another base model": ({"base_model": ""}, "names no base_model"),
}


@pytest.mark.parametrize("what", MANIFESTS)
async def test_a_manifest_that_is_wrong_is_one_line(there: Door, what: str) -> None:
    change, line = MANIFESTS[what]
    trainer = there.trainer()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await trainer.push(GOOD, **{"step": 1, **change})
    details = str(caught.value.details())
    assert line in details
    assert len(details) < 1500
    assert "\n" not in details
    assert "unexpectedly" not in details
    assert there.files() == []
    assert (await trainer.push(GOOD)).received_bytes == 128


def piece(tensor: int, offset: int, data: bytes) -> pb.PushRequest:
    return pb.PushRequest(bytes=pb.PushedBytes(tensor=tensor, offset=offset, data=data))


ONE, TWO = GOOD.tensors.values()
COMMIT = pb.PushRequest(commit=pb.CommitPush())
MESSAGES: dict[str, tuple[list[pb.PushRequest | bytes], str]] = {
    "more bytes than are missing": (
        [piece(0, 0, ONE + TWO + b"x")],
        "got 129 bytes at tensor 0, expected 1 to 128",
    ),
    "more bytes than are left": ([piece(0, 0, ONE), piece(1, 0, TWO + ONE)], "expected 1 to 64"),
    "the same twice": ([piece(0, 0, ONE + TWO)] * 2, "got tensor 0 at 0, expected the end"),
    "bytes that overlap": ([piece(0, 0, ONE + b"x"), piece(1, 0, TWO)], "expected tensor 1 at 1"),
    "a tensor before its turn": ([piece(1, 0, TWO + ONE)], "expected tensor 0 at 0"),
    "another content in the next": ([piece(0, 0, ONE + ONE)], f"{B} has digest"),
    "fewer": ([piece(0, 0, ONE[:60]), piece(1, 0, TWO)], "expected tensor 0 at 60"),
    "a hole": ([piece(0, 8, ONE)], "expected tensor 0 at 0"),
    "no bytes": ([piece(0, 0, b"")], "got 0 bytes at tensor 0, expected 1 to 128"),
    "another content": ([piece(0, 0, TWO)], "has digest"),
    "a tensor that nobody asked for": ([piece(1 << 31, 0, b"x")], "expected tensor 0 at 0"),
    "an offset beyond all": ([piece(0, 1 << 63, b"x")], "expected tensor 0 at 0"),
    "a commit of half": ([piece(0, 0, ONE), COMMIT], "1 of 2 tensors are missing"),
    "a second manifest": ([pb.PushRequest(manifest=pb.PushManifest())], "got manifest"),
    "nothing at all": ([pb.PushRequest()], "got nothing"),
    "more than a message holds": ([piece(0, 0, bytes(21 << 20))], "larger than max"),
    "what is no message": ([b"\xff" * 100], "more than ten bytes"),
    "what ends in the middle": ([piece(0, 0, b"12345").SerializeToString()[:-1]], "are left"),
}


@pytest.mark.parametrize("what", MESSAGES)
async def test_messages_that_are_wrong_end_the_push_and_nothing_else(
    there: Door, what: str
) -> None:
    messages, line = MESSAGES[what]
    trainer = there.trainer()
    other = Content.of(3, 4)
    kept = await trainer.push(other, 1)
    async with trainer.channel() as channel:
        push = channel.stream_stream(
            "/lorafleet.v1alpha1.PushService/Push",
            request_serializer=lambda each: (
                each if isinstance(each, bytes) else each.SerializeToString()
            ),
            response_deserializer=pb.PushResponse.FromString,
        )
        call = WrittenCall(push(metadata=trainer.metadata, timeout=30))
        await call.write(pb.PushRequest(manifest=trainer.manifest(GOOD, 2)))
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _send(call, messages)
    assert line in str(caught.value.details())
    assert caught.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    assert there.named() == kept.revision
    assert (await trainer.push(GOOD, 3)).revision == there.named()
    assert not [each for each in there.files() if ".part" in each]


async def _send(call: WrittenCall, messages: list[Any]) -> None:
    for each in messages:
        await call.write(each)
    await call.finish()


async def test_streams_left_open_are_cut_off_and_keep_no_place(
    there: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorafleet_operator.push import stream

    monkeypatch.setattr(stream, "_STALL_SECONDS", 0.3)
    monkeypatch.setattr(stream, "_MANIFEST_SECONDS", 0.4)
    trainer = there.trainer()
    async with trainer.channel() as channel:
        stub = pb_grpc.PushServiceStub(channel)
        silent = stub.Push(metadata=trainer.metadata)
        waiting = stub.Push(metadata=trainer.metadata)
        await waiting.write(pb.PushRequest(manifest=trainer.manifest(GOOD, 2)))
        await waiting.read()
        assert await silent.code() is grpc.StatusCode.ABORTED
        assert await silent.details() == "nothing came for 0.4 s"
        assert await waiting.details() == "nothing came for 0.3 s"
    assert (await trainer.push(GOOD)).revision == there.named()


async def test_a_stream_that_drips_is_cut_off(there: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from lorafleet_operator.push import stream

    # Longer than a busy machine stands still: that is silence, and told as such.
    monkeypatch.setattr(stream, "_STALL_SECONDS", 3.0)
    trainer = there.trainer()
    async with trainer.channel() as channel:
        call = WrittenCall(pb_grpc.PushServiceStub(channel).Push(metadata=trainer.metadata))
        await call.write(pb.PushRequest(manifest=trainer.manifest(Content.of(5, 6), 2)))
        await call.read()

        async def drip() -> None:
            for at in range(64):
                await call.write(piece(0, at, b"\5"))
                await asyncio.sleep(0.06)
            await call.finish()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drip()
    assert "bytes came in 3 s, a push that takes part brings 1048576" in str(caught.value.details())
    assert (await trainer.push(GOOD)).revision == there.named()
