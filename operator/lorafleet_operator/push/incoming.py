"""One push while it comes: which tensors are asked for, and the file that they are written to.

Blocks; runs in threads. Messages are written and hashed side by side, a few of them, and count in
their order: the file `data/<hex>.part` holds whole tensors one after another, and
`data/<hex>.part.index` the digest and size of each. After a break both are read again, and a tensor
counts only if its bytes still have its digest.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import IO, TYPE_CHECKING, Final

from lorafleet.durable import sync_directory
from lorafleet.errors import DigestMismatch, TransferInterrupted
from lorafleet.push.tensors import PIECE_BYTES

from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.push.bulk import Stored, copied, groups, in_order, right
from lorafleet_operator.push.message import Message, Piece, writers
from lorafleet_operator.push.shelf import overhead
from lorafleet_operator.sources.pushed import PART, Place, hex_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision
    from lorafleet_operator.push.spool import Spool

_WHOLE: Final = struct.Struct("<32sQ")
_AHEAD: Final = 4
"""Messages of one push that are written and hashed: the bound on its memory, beside the next one."""
_MOST_FILES: Final = 64
"""Files that one revision may have its tensors in; with more, half of them are brought together."""


class Incoming:
    """Takes the tensors of one revision that the spool lacks."""

    def __init__(self, spool: Spool, key: str, revision: PushedRevision) -> None:
        self._spool = spool
        self._key = key
        self._revision = revision
        self._sizes = {d: revision.size(index) for d, index in revision.needed().items()}
        self._files: list[IO[bytes]] = []
        self._brought: dict[bytes, int] = {}  # offsets in the file
        self._end = 0  # of the tensors that count, in the file
        self._next = self._done = 0  # where the next message begins: in `missing`, in that tensor
        self._at = 0  # in the file
        self._left = 0
        self._hash = hashlib.sha256()  # of a tensor that is in several messages
        self._coming: deque[Future[None]] = deque()
        self._taker = ThreadPoolExecutor(1, thread_name_prefix="pushed-order")
        self._broken = False  # something that came is not as promised: nothing counts from there on
        self.received_bytes = 0
        self.on_count: Callable[[int], object] = lambda counted: None
        """Told by a thread, each time, up to where the file is right: there lie the tensors that count."""
        self.missing: list[int] = []
        """Indexes of the tensors to be sent, in that order."""

    def open(self, wanted: Collection[str]) -> None:
        """Find out what is missing, and make room for it.

        `wanted`: see Spool.reserve. Raises StagingFull before anything is taken.
        """
        lacking = self._look(wanted)
        while self._places != self._spool.known(self._key, self._sizes):
            lacking = self._look(wanted)  # making room took revisions that had what this one needs
        self._open(self._spool.folder(self._key) / "data", hex_of(self._revision.revision))
        needed = self._revision.needed()
        self.missing = sorted(needed[each] for each in lacking if each not in self._brought)
        self._left = sum(map(self._revision.size, self.missing))
        self._at = self._end

    def _look(self, wanted: Collection[str]) -> set[bytes]:
        """Find what is here already, and make room for the rest; return what is missing.

        What lies in a file of which less than half is of use to this revision moves to the new one:
        so what a revision needs keeps at most twice its bytes on the disk. So does what lies in the
        files of least use when there are too many of them.
        """
        data = self._spool.folder(self._key) / "data"
        self._places = self._spool.known(self._key, self._sizes)
        used: Counter[str] = Counter()
        for digest, place in self._places.items():
            used[place.file] += self._sizes[digest]
        leaving = {file for file, size in used.items() if 2 * size < (data / file).stat().st_size}
        if len(used) > _MOST_FILES:
            leaving |= {file for file, _ in used.most_common()[_MOST_FILES // 2 :]}
        self._moving = [d for d, place in self._places.items() if place.file in leaving]
        lacking = self._sizes.keys() - self._places.keys()
        room = sum(self._sizes[digest] for digest in (*lacking, *self._moving))
        self._spool.reserve(self._key, room + overhead(self._revision), wanted)
        return lacking

    def _open(self, data: Path, name: str) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self._part, self._index = data / f"{name}{PART}", data / f"{name}{PART}.index"
        for other in data.glob(f"*{PART}*"):
            if other not in (self._part, self._index):
                other.unlink(missing_ok=True)  # a push that nobody goes on with
        for path in (self._part, self._index):
            self._files.append(path.open("r+b" if path.exists() else "w+b", buffering=0))
        self._file, self._list = self._files
        listed = [Stored(*each) for each in _WHOLE.iter_unpack(_even(self._list.read()))]
        self._list.seek(0)
        self._count_right(listed, partial(right, self._file.fileno()))
        self._file.truncate(self._end)
        self._list.truncate()

    def _count_right(
        self, tensors: Sequence[Stored], look: Callable[[int, Sequence[Stored]], int]
    ) -> Stored | None:
        """Count tensors in up to the first one that is not as it should be; return that one.

        `look`: brings or finds some of them at an offset, and returns how many, the first ones, are right.
        """
        parts = groups(tensors, self._end)
        with closing(in_order([partial(look, at, part) for at, part in parts])) as counts:
            for (_, part), count in zip(parts, counts, strict=True):
                self._count([each.digest for each in part[:count]])
                if count < len(part):
                    return part[count]
        return None

    @property
    def missing_bytes(self) -> int:
        """Bytes that are to be sent still."""
        return self._left

    def promised(self) -> list[Place]:
        """Return where each tensor lies, or will; to be called before the first `write`.

        One that moves counts where it comes to: there it is known to be right.
        """
        found, at = dict(self._places), self._end
        found |= {d: Place(d, self._part.name, offset) for d, offset in self._brought.items()}
        moving = [digest for digest in self._moving if digest not in self._brought]
        for digest in (*(self._revision.digests[each] for each in self.missing), *moving):
            found[digest] = Place(digest, self._part.name, at)
            at += self._sizes[digest]
        return [found.get(d) or Place(d, self._part.name, 0) for d in self._revision.digests]

    def write(self, tensor: int, offset: int, content: bytes | memoryview) -> None:
        """Take bytes of the tensor, and of the missing ones behind it as far as they reach.

        Returns before they are written and checked: what is wrong with them is raised by a later
        call, `settle` at the latest. Raises TransferInterrupted, and takes nothing, for bytes that
        are not the next, for none, for more than is missing or than one message may have;
        DigestMismatch.
        """
        expected = self.missing[self._next] if self._next < len(self.missing) else None
        if tensor != expected or offset != self._done:
            want = "the end" if expected is None else f"tensor {expected} at {self._done}"
            raise TransferInterrupted(f"got tensor {tensor} at {offset}, expected {want}")
        most = min(self._left, PIECE_BYTES)
        if not 0 < len(content) <= most:
            raise TransferInterrupted(
                f"got {len(content)} bytes at tensor {tensor}, expected 1 to {most}"
            )
        while self._coming and (len(self._coming) >= _AHEAD or self._coming[0].done()):
            self._coming.popleft().result()
        message = Message(self._at, content, self._cut(len(content)))
        self._at += len(content)
        self._left -= len(content)
        self.received_bytes += len(content)
        stored = writers().submit(message.store, self._file.fileno())
        self._coming.append(self._taker.submit(self._take, message, stored))

    def _cut(self, length: int) -> list[Piece]:
        """Return which tensors the next bytes are of."""
        pieces, at = list[Piece](), 0
        while at < length:
            tensor = self.missing[self._next]
            left = self._revision.size(tensor) - self._done
            stop = min(length, at + left)
            ends = stop == at + left
            pieces.append(Piece(tensor, at, stop, begins=not self._done, ends=ends))
            self._next, self._done = (
                (self._next + 1, 0) if ends else (self._next, self._done + stop - at)
            )
            at = stop
        return pieces

    def settle(self) -> None:
        """Return when all that came is written and checked. Raises DigestMismatch."""
        while self._coming:
            self._coming.popleft().result()

    def _take(self, message: Message, stored: Future[list[bytes]]) -> None:
        """Count a message's tensors in once it is written. One at a time, in the order they came."""
        try:
            digests = iter(stored.result())
        finally:
            broken, self._broken = self._broken, True  # until all of it is counted
        if broken:
            return
        whole = list[bytes]()
        try:
            for piece in message.pieces:
                found = next(digests) if piece.whole else self._joined(message, piece)
                if found:
                    whole.append(self._checked(piece.tensor, found))
        finally:
            self._count(whole)
        self._broken = False

    def _joined(self, message: Message, piece: Piece) -> bytes:
        """Hash a part of a tensor that others go before; return the digest with the last one."""
        self._hash.update(message.of(piece))
        if not piece.ends:
            return b""
        found, self._hash = self._hash.digest(), hashlib.sha256()
        return found

    def _checked(self, tensor: int, found: bytes) -> bytes:
        digest = self._revision.digests[tensor]
        if found != digest:
            name = self._revision.name(tensor)
            raise DigestMismatch(f"{name} has digest {found.hex()}, promised {digest.hex()}")
        return digest

    def _count(self, digests: Sequence[bytes]) -> None:
        """Count tensors in that lie one after another where the last one ends."""
        entries = [_WHOLE.pack(digest, self._sizes[digest]) for digest in digests]
        self._list.write(b"".join(entries))
        for digest in digests:
            self._brought[digest] = self._end
            self._end += self._sizes[digest]
        self.on_count(self._end)

    def commit(self) -> None:
        """Keep the revision. Raises TransferInterrupted while tensors are missing, DigestMismatch."""
        self.settle()
        digests = self._revision.digests
        if left := sum(digests[each] not in self._brought for each in self.missing):
            raise TransferInterrupted(
                f"{left} of {len(self._revision.digests)} tensors are missing"
            )
        self._move()
        # Never the name of an earlier file: revisions that are kept may have tensors in that.
        name = os.urandom(32).hex()
        os.fsync(self._file.fileno())
        whole = self._part.rename(self._part.with_name(name))
        try:
            sync_directory(whole.parent)
            crash_at("push.brought")
            self._places |= {d: Place(d, name, offset) for d, offset in self._brought.items()}
            places = [self._places.get(d) or Place(d, name, 0) for d in self._revision.digests]
            self._spool.keep(self._key, self._revision, places)
        except BaseException:
            whole.unlink(missing_ok=True)
            raise
        self._index.unlink(missing_ok=True)

    def _move(self) -> None:
        data = self._part.parent
        moving = [Stored(d, self._sizes[d]) for d in self._moving if d not in self._brought]
        damaged = self._count_right(
            moving, partial(copied, data, self._places, self._file.fileno())
        )
        if damaged is not None:
            # The next try asks for what was in it.
            (data / self._places[damaged.digest].file).unlink(missing_ok=True)
            raise TransferInterrupted(f"{damaged.digest.hex()} is damaged on disk: push it again")

    def close(self) -> None:
        """Close the files; what has come whole stays for the next try of the same revision."""
        self._taker.shutdown()
        for file in self._files:
            file.close()

    def discard(self) -> None:
        """Leave nothing of it: the disk is full."""
        self.close()
        for path in (self._part, self._index):
            path.unlink(missing_ok=True)


def _even(packed: bytes) -> bytes:
    return packed[: len(packed) // _WHOLE.size * _WHOLE.size]
