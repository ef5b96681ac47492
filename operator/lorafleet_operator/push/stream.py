"""What comes of one push's stream and what is answered, and work in threads for it: never cut short."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import (
    InvalidAdapter,
    LorafleetError,
    SourceUnavailable,
    StagingFull,
    TransferInterrupted,
)
from lorafleet.push.frames import Pushed, decode
from lorafleet.v1alpha1 import push_pb2 as pb

from lorafleet_operator.sources.pushed import threads

if TYPE_CHECKING:
    from collections.abc import Callable

_STALL_SECONDS: Final = 60.0
_MANIFEST_SECONDS: Final = 30.0
_MOST_CHARACTERS: Final = 1024
_LEAST_BYTES: Final = 1 << 20
"""In each _STALL_SECONDS; with less a push is broken off, and goes on there with its next try."""
_CONTENT: Final = frozenset({"adapter_config", "safetensors_header", "tensor_digests"})


def without_content(manifest: pb.PushManifest) -> pb.PushManifest:
    """Return a copy without what is large: a message keeps its memory for as long as it lives."""
    kept = {f.name: value for f, value in manifest.ListFields() if f.name not in _CONTENT}
    return pb.PushManifest(**kept)


class Pace:
    """Raises TransferInterrupted for a push that keeps its place without getting on."""

    def __init__(self) -> None:
        self._since = asyncio.get_running_loop().time()
        self._bytes = 0

    def came(self, size: int) -> None:
        """Note bytes that came."""
        self._bytes += size
        now = asyncio.get_running_loop().time()
        if now - self._since < _STALL_SECONDS:
            return
        if self._bytes < _LEAST_BYTES:
            raise TransferInterrupted(
                f"{self._bytes} bytes came in {_STALL_SECONDS:g} s, "
                f"a push that takes part brings {_LEAST_BYTES}"
            )
        self._since, self._bytes = now, 0


async def done(work: Callable[[], Any]) -> Any:
    """Return what `work` does in a thread, also when it is cancelled: nobody else may close the
    files that the thread writes to."""
    try:
        return await _uncut(asyncio.get_running_loop().run_in_executor(threads(), work))
    except OSError as error:
        raise _of_disk(error) from None


async def say(context: Any, **answer: Any) -> None:
    """Send an answer, also when it is cancelled: gRPC tells nobody why a call ends while it sends."""
    await _uncut(asyncio.ensure_future(context.write(pb.PushResponse(**answer))))


async def _uncut(doing: asyncio.Future[Any]) -> Any:
    """Return what comes of it; one who is cancelled waits for that and is cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not doing.cancelled():
            doing.exception()  # noted: nobody else asks for it
        raise cancelled
    return doing.result()


def _of_disk(error: OSError) -> LorafleetError:
    what = error.strerror or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StagingFull(f"the operator's disk for pushes is full: {what}")
    return SourceUnavailable(f"the operator's disk for pushes: {what}")


async def first(context: Any) -> pb.PushManifest:
    """Return the manifest. Raises TransferInterrupted, InvalidAdapter."""
    request = await following(context, _MANIFEST_SECONDS)
    if isinstance(request, Pushed) or request.WhichOneof("message") != "manifest":
        raise TransferInterrupted("a push begins with its manifest")
    manifest: pb.PushManifest = request.manifest
    for what in ("base_model", "pool", "pool_namespace", "served_name"):
        if (size := len(getattr(manifest, what))) > _MOST_CHARACTERS:
            raise InvalidAdapter(f"{what} has {size} characters, at most {_MOST_CHARACTERS}")
    if manifest.step < 0:
        raise InvalidAdapter(f"step {manifest.step} is negative")
    return manifest


async def following(context: Any, seconds: float = 0) -> Pushed | pb.PushRequest:
    """Return the next request. Raises TransferInterrupted when none comes, or what is none."""
    seconds = seconds or _STALL_SECONDS
    try:
        async with asyncio.timeout(seconds):
            # Not from the iterator: of a stream that breaks that one keeps its last message for ever.
            raw = await context.read()
    except TimeoutError:
        raise TransferInterrupted(f"nothing came for {seconds:g} s") from None
    if not isinstance(raw, bytes):
        raise TransferInterrupted("the stream ended before its commit")
    return decode(raw)


async def more(context: Any) -> Pushed | None:
    """Return the next bytes, None for the commit. Raises TransferInterrupted for anything else."""
    request = await following(context)
    if isinstance(request, Pushed):
        return request
    if (found := request.WhichOneof("message")) != "commit":
        raise TransferInterrupted(f"got {found or 'nothing'}, expected bytes or commit")
    return None


async def commit_comes(context: Any) -> None:
    """Wait for the commit of a push that lacks nothing. Raises TransferInterrupted."""
    if await more(context) is not None:
        raise TransferInterrupted("nothing is missing: expected commit")
