"""The message of a push that carries bytes, without copies of them; lorafleet.frames does it for transfers.

Wire-compatible with the generated classes of `push.proto` (a test proves it): they would copy the
bytes of a message four times to send it, and twice to take it. Input is hostile: whatever is wrong
raises TransferInterrupted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from lorafleet.errors import TransferInterrupted
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from lorafleet.wire import BYTES, VARINT, Fields, field_key, varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

SERVICE: Final = "lorafleet.v1alpha1.PushService"
_BYTES_FIELD: Final = 2  # PushRequest.bytes
_TENSOR, _OFFSET, _DATA = 1, 2, 3  # PushedBytes


class Pushed(NamedTuple):
    """PushRequest.bytes; `data` is a view into the received message."""

    tensor: int
    offset: int
    data: memoryview


def encode(tensor: int, offset: int, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the PushRequest that carries `parts`, one behind the other; they are copied once."""
    size = sum(map(len, parts))
    head = b""
    # proto3 leaves out fields that hold their default.
    if tensor:
        head += field_key(_TENSOR, VARINT) + varint(tensor)
    if offset:
        head += field_key(_OFFSET, VARINT) + varint(offset)
    if size:
        head += field_key(_DATA, BYTES) + varint(size)
    length = varint(len(head) + size)
    return b"".join((field_key(_BYTES_FIELD, BYTES), length, head, *parts))


def decode(raw: bytes) -> Pushed | pb.PushRequest:
    """Return what a serialised PushRequest holds, or raise TransferInterrupted."""
    if (found := _as_encoded(memoryview(raw))) is not None:
        return found
    try:
        request = pb.PushRequest.FromString(raw)
    except DecodeError:
        raise TransferInterrupted("message is no PushRequest") from None
    if request.WhichOneof("message") == "bytes":
        return Pushed(request.bytes.tensor, request.bytes.offset, memoryview(request.bytes.data))
    return request


def stub_of(channel: grpc.Channel) -> pb_grpc.PushServiceStub:
    """Return the service's methods; Push takes requests of either kind."""
    stub = pb_grpc.PushServiceStub(channel)  # type: ignore[no-untyped-call]
    stub.Push = channel.stream_stream(
        f"/{SERVICE}/Push",
        request_serializer=_encoded,
        response_deserializer=pb.PushResponse.FromString,
    )
    return stub


def _encoded(request: bytes | pb.PushRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def _as_encoded(raw: memoryview) -> Pushed | None:
    """Return what `encode` made; None for anything else, of which only the first few fields are read.

    Millions of fields in one message would hold up everybody: those are protobuf's, in C.
    """
    message = Fields(raw)
    field, _, body = next(iter(message), (0, 0, 0))
    if field != _BYTES_FIELD or not isinstance(body, memoryview) or message.left:
        return None
    content, tensor, offset, data = Fields(body), 0, 0, body[:0]
    for field, kind, value in islice(content, 3):
        if field == _TENSOR and kind == VARINT and isinstance(value, int):
            tensor = value
        elif field == _OFFSET and kind == VARINT and isinstance(value, int):
            offset = value
        elif field == _DATA and isinstance(value, memoryview):
            data = value
        else:
            return None
    return None if content.left else Pushed(tensor, offset, data)
