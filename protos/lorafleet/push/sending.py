"""One push as push.proto has it: a manifest, the tensors that the operator lacks, a commit."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import TooLarge, TransferInterrupted
from lorafleet.push.connection import about
from lorafleet.push.frames import encode
from lorafleet.push.tensors import PIECE_BYTES, read, size_of
from lorafleet.v1alpha1 import push_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lorafleet.push.content import Content
    from lorafleet.v1alpha1.push_pb2_grpc import PushServiceStub

    _Piece = tuple[int, int, memoryview | bytes]  # tensor, offset in it, bytes

MOST_MANIFEST_BYTES: Final = 20 << 20
"""The most that the operator takes in one message."""
MOST_TENSORS: Final = 100_000
"""More than twice those of the largest adapter known; bounds what a push takes of the operator's memory."""


class Sending:
    """A push that may be tried several times; what came whole is not asked for again.

    `progress` is told (bytes sent, bytes that the operator lacks), of the present try.
    """

    def __init__(
        self,
        manifest: pb.PushManifest,
        content: Content,
        progress: Callable[[int, int], None] = lambda _sent, _of: None,
    ) -> None:
        self._manifest = manifest
        self._content = content
        self._progress = progress

    def __call__(self, stub: PushServiceStub, metadata: Any) -> pb.PushCommitted:
        """Push once. Raises grpc.RpcError, TooLarge, and what reading a tensor raises."""
        _check_size(self._manifest)
        accepted = threading.Event()
        missing: list[int] = []
        runs_on = False
        failed: list[BaseException] = []

        def requests() -> Iterator[pb.PushRequest | bytes]:
            # gRPC asks for the next one when it has sent the one before: so memory is bounded.
            yield pb.PushRequest(manifest=self._manifest)
            accepted.wait()
            try:
                yield from self._messages(missing, PIECE_BYTES if runs_on else 0)
            except BaseException as error:
                failed.append(error)
                raise
            yield pb.PushRequest(commit=pb.CommitPush())

        manifest = self._manifest
        call = stub.Push(requests(), metadata=about(metadata, manifest.namespace, manifest.name))
        try:
            for response in call:
                if response.WhichOneof("message") == "committed":
                    committed: pb.PushCommitted = response.committed
                    return committed
                missing += response.accepted.missing
                runs_on = response.accepted.runs_on
                accepted.set()
        except BaseException:
            if failed:
                raise failed[0] from None
            raise
        finally:
            missing.clear()
            accepted.set()
            with suppress(Exception):
                call.cancel()
        raise TransferInterrupted("the operator ended the push without an answer")

    def _messages(self, missing: Sequence[int], most: int) -> Iterator[bytes]:
        """Yield the bytes of these tensors, pieces that are at most `most` together in one message."""
        tensors = self._content.tensors
        lacking, sent = sum(size_of(tensors[index]) for index in missing), 0
        self._progress(sent, lacking)
        for first, parts in _together(self._pieces(missing), most):
            yield encode(*first, parts)
            sent += sum(map(len, parts))
            self._progress(sent, lacking)

    def _pieces(self, missing: Sequence[int]) -> Iterator[_Piece]:
        numbers = tuple(missing)
        tensors = [self._content.tensors[index] for index in numbers]
        last, offset = -1, 0
        for at, piece in read(tensors):
            if at != last:
                last, offset = at, 0
            yield numbers[at], offset, piece if tensors[at].bounce is None else bytes(piece)
            offset += len(piece)


def _together(
    pieces: Iterator[_Piece], most: int
) -> Iterator[tuple[tuple[int, int], list[memoryview | bytes]]]:
    """Yield as few messages as hold whole pieces: tensor and offset of the first, and all."""
    first, size, parts = (0, 0), 0, list[memoryview | bytes]()
    for tensor, offset, data in pieces:
        if parts and size + len(data) > most:
            yield first, parts
            size, parts = 0, []
        if not parts:
            first = tensor, offset
        size += len(data)
        parts.append(data)
    if parts:
        yield first, parts


def _check_size(manifest: pb.PushManifest) -> None:
    for found, most, what in (
        (len(manifest.tensor_digests), MOST_TENSORS, "tensors"),
        (manifest.ByteSize(), MOST_MANIFEST_BYTES, "bytes of config, header and digests"),
    ):
        if found > most:
            raise TooLarge(f"the push has {found} {what}, at most {most} are taken")
