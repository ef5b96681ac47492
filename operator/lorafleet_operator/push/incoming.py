"""One push while it comes: which tensors are asked for, and the file that they are written to.

Blocks; runs in threads. The file `data/<hex>.part` holds whole tensors one after another, and
`data/<hex>.part.index` the digest and size of each. After a break both are read again, and a tensor
counts only if its bytes still have its digest.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING, Final

from lorafleet.errors import DigestMismatch, TransferInterrupted

from lorafleet_operator.push.spool import PART, sync_folder
from lorafleet_operator.sources.pushed import Place, hex_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision
    from lorafleet_operator.push.spool import Spool

_WHOLE: Final = struct.Struct("<32sQ")
_PIECE: Final = 4 << 20


class Incoming:
    """Takes the tensors of one revision that the spool lacks.

    `wanted`: see Spool.reserve. Raises StagingFull before anything is taken.
    """

    def __init__(
        self, spool: Spool, key: str, revision: PushedRevision, wanted: Collection[str]
    ) -> None:
        self._spool = spool
        self._key = key
        self._revision = revision
        self._wanted = wanted
        needed = revision.needed()
        self._places = {d: place for d, place in spool.known(key).items() if d in needed}
        lacking = {d: i for d, i in needed.items() if d not in self._places}
        spool.reserve(key, sum(map(revision.size, lacking.values())), wanted)
        # Making room may have taken revisions away that had what this one needs.
        still = spool.known(key)
        if any(digest not in still for digest in self._places):
            self._places = {d: place for d, place in self._places.items() if d in still}
            lacking = {d: i for d, i in needed.items() if d not in self._places}
            spool.reserve(key, sum(map(revision.size, lacking.values())), wanted)
        self.received_bytes = 0
        self._brought: dict[bytes, int] = {}  # offsets in the file
        self._open(spool.folder(key) / "data", hex_of(revision.revision))
        self.missing = sorted(i for d, i in lacking.items() if d not in self._brought)
        """Indexes of the tensors to be sent, in that order."""
        self._next = 0
        self._hash = hashlib.sha256()
        self._done = 0

    def _open(self, data: Path, name: str) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self._part, self._index = data / f"{name}{PART}", data / f"{name}{PART}.index"
        for other in data.glob(f"*{PART}*"):
            if other not in (self._part, self._index):
                other.unlink(missing_ok=True)  # a push that nobody goes on with
        self._file = self._part.open("r+b" if self._part.exists() else "w+b", buffering=0)
        self._list = self._index.open("r+b" if self._index.exists() else "w+b", buffering=0)
        self._end = 0
        whole = 0
        for digest, size in _WHOLE.iter_unpack(_even(self._list.read())):
            if _digest(self._file.fileno(), self._end, size) != digest:
                break
            self._brought[digest] = self._end
            self._end += size
            whole += _WHOLE.size
        self._file.truncate(self._end)
        self._list.truncate(whole)
        self._list.seek(whole)

    def write(self, tensor: int, offset: int, content: bytes) -> None:
        """Take a piece. Raises TransferInterrupted for one that is not the next, DigestMismatch."""
        expected = self.missing[self._next] if self._next < len(self.missing) else None
        if tensor != expected or offset != self._done:
            want = "the end" if expected is None else f"tensor {expected} at {self._done}"
            raise TransferInterrupted(f"got tensor {tensor} at {offset}, expected {want}")
        size = self._revision.size(tensor)
        if not content or self._done + len(content) > size:
            raise TransferInterrupted(
                f"tensor {tensor} has {size} bytes, got {self._done + len(content)}"
            )
        _write(self._file.fileno(), self._end + self._done, content)
        self._hash.update(content)
        self._done += len(content)
        self.received_bytes += len(content)
        if self._done == size:
            self._finish(tensor, size)

    def _finish(self, tensor: int, size: int) -> None:
        digest = self._revision.digests[tensor]
        found, self._hash = self._hash.digest(), hashlib.sha256()
        self._done = 0
        if found != digest:
            name = self._revision.header.tensors[tensor].name
            raise DigestMismatch(f"{name} has digest {found.hex()}, promised {digest.hex()}")
        self._list.write(_WHOLE.pack(digest, size))
        self._brought[digest] = self._end
        self._end += size
        self._next += 1

    def commit(self) -> None:
        """Keep the revision. Raises TransferInterrupted while tensors are missing."""
        if self._next < len(self.missing):
            left = len(self.missing) - self._next
            raise TransferInterrupted(
                f"{left} of {len(self._revision.digests)} tensors are missing"
            )
        # Never the name of an earlier file: revisions that are kept may have tensors in that.
        name = os.urandom(32).hex()
        os.fsync(self._file.fileno())
        self._part.rename(self._part.with_name(name))
        sync_folder(self._part.parent)
        self._places |= {d: Place(d, name, offset) for d, offset in self._brought.items()}
        places = [self._places.get(d) or Place(d, name, 0) for d in self._revision.digests]
        self._spool.keep(self._key, self._revision, places)
        self._index.unlink(missing_ok=True)
        kept = f"{self._key}/{hex_of(self._revision.revision)}"
        self._spool.settle(self._key, {*self._wanted, kept})

    def close(self) -> None:
        """Close the files; what has come whole stays for the next try of the same revision."""
        self._spool.release(self._key)
        self._file.close()
        self._list.close()


def _even(packed: bytes) -> bytes:
    return packed[: len(packed) // _WHOLE.size * _WHOLE.size]


def _digest(descriptor: int, offset: int, size: int) -> bytes:
    found, at = hashlib.sha256(), offset
    while at < offset + size:
        piece = os.pread(descriptor, min(_PIECE, offset + size - at), at)
        if not piece:
            break
        found.update(piece)
        at += len(piece)
    return found.digest()


def _write(descriptor: int, offset: int, content: bytes) -> None:
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)
