"""The types of a source: what the operator asks for and what it gets.

A `Source` is one adapter's address with its credentials. `resolve()` reads the header and the
config, never the tensors; the `ResolvedAdapter` it returns then serves ranges of the tensor data.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_READ_BYTES = 64 << 20
"""Largest `length` of one read, in bytes: what a caller may make us hold at once."""

Buffer = bytes | bytearray | memoryview


class Blob(Protocol):
    """One immutable version of one file at a source.

    Reads serve exactly the version that was opened: if the file is another one by now they
    raise `SourceChanged`.
    """

    @property
    def name(self) -> str:
        """File name, for messages."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def identity(self) -> str:
        """Text that differs between versions of the file (ETag, inode and mtime, hash)."""

    @property
    def revision(self) -> str:
        """Short form of the identity for people."""

    @property
    def linked(self) -> bool:
        """Whether a link was followed to reach the file."""

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly bytes `offset .. offset + length` of the file."""


class Tree(Protocol):
    """The files of one adapter at a source, by name."""

    @property
    def uri(self) -> str:
        """The address without any secret, for people."""

    async def open(self, name: str) -> Blob | None:
        """Return the current version of the file, None if there is no such file."""


@dataclass(frozen=True)
class Segment:
    """A run of the tensor data section and the place in a blob that holds it."""

    start: int
    """Offset in the data section, bytes."""
    length: int
    """Bytes."""
    blob: Blob
    offset: int
    """Offset of the run in the blob, bytes."""


@dataclass(frozen=True)
class ResolvedAdapter:
    """One version of an adapter: its header and config, and access to its tensor data.

    `read` serves ranges of the data section described by the header, whether that is one
    safetensors file, several shards or the storages of a converted pickle.
    """

    fingerprint: str
    """sha256 hex over the address, the identity of the files, the header and the config."""
    header_bytes: bytes
    """JSON of the safetensors header, without the length prefix."""
    config_bytes: bytes
    """adapter_config.json as it is."""
    data_bytes: int
    """Size of the tensor data section."""
    revision: str
    """ETag, mtime or commit, for status."""
    uri: str
    """The address, without any secret."""
    segments: tuple[Segment, ...] = field(repr=False, default=())
    """Where the data lies: consecutive, covering `0 .. data_bytes`."""
    tensor_digests: tuple[bytes, ...] = field(repr=False, default=())
    """SHA-256 of each tensor's bytes in the order of the header's offsets, where they are known."""
    cut_before: tuple[int, ...] = field(repr=False, default=())
    """Tensors, as indexes in that order, at which what engines may have already begins or ends."""
    normalized: tuple[str, ...] = ()
    """What the source changed to give one plain adapter, for the condition `Normalized`."""
    whole: bool = False
    """Whether `confirm` compares a digest that covers only what was read through this object: then
    what an earlier one has read must not be mixed with it."""
    checks: tuple[Callable[[], Awaitable[None]], ...] = field(repr=False, default=())
    """What `confirm` awaits."""

    async def read(self, offset: int, length: int) -> Buffer:
        """Return bytes `offset .. offset + length` of the data section.

        `length` is at most `MAX_READ_BYTES`. Raises `SourceChanged` if the source no longer
        holds what was resolved, `SourceUnavailable` if it stopped answering.
        """
        if length > MAX_READ_BYTES:
            raise ValueError(f"read of {length} bytes; at most {MAX_READ_BYTES} at once")
        if offset < 0 or length < 0 or offset + length > self.data_bytes:
            raise ValueError(f"range {offset}+{length} is outside the {self.data_bytes} data bytes")
        if length == 0:
            return b""
        index = bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1
        first = self.segments[index]
        if offset + length <= first.start + first.length:
            return await first.blob.read(first.offset + offset - first.start, length)
        joined = bytearray(length)
        done = 0
        while done < length:
            segment = self.segments[index]
            skip = offset + done - segment.start
            take = min(segment.length - skip, length - done)
            if take:
                joined[done : done + take] = await segment.blob.read(segment.offset + skip, take)
                done += take
            index += 1
        return joined

    async def confirm(self) -> None:
        """Make sure that all that was read is one version, and the one that was promised.

        To be awaited when the data has been read, before anything relies on it. Raises
        `SourceChanged` if a file that was read earlier is another one by now, `DigestMismatch` if
        the source promised another content.
        """
        for check in self.checks:
            await check()


class Source(Protocol):
    """One adapter's address, with its credentials."""

    @property
    def kind(self) -> str:
        """The provider, as `spec.source` calls it (`s3`, `http`, ..); a metric's label."""

    @property
    def uri(self) -> str:
        """The address without any secret."""

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of what the address holds now.

        Raises a `SourceError`, or `InvalidAdapter` if the files cannot be an adapter.
        """

    async def aclose(self) -> None:
        """Release connections; earlier `ResolvedAdapter`s must not be read after it."""
