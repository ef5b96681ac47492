"""What an image is known by: the digest of its content, and what the engine proves its slots with.

A packed tensor is hashed and fingerprinted as soon as all of its bytes are counted in, while others
still come (`Sealing`); the commit reads the rest (`seal`). A chunk that was counted in is never
written again (`received.py`), so what was read then is what is there at the commit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from concurrent.futures import wait
from typing import TYPE_CHECKING, NamedTuple

from lorafleet.digest import canonical_digest
from lorafleet.errors import InvalidAdapter

from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.fingerprints import largest, tensor_fingerprint
from lorafleet_sidecar.packed import Feeding, packed_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Executor, Future

    from lorafleet.layout import CanonicalLayout

    from lorafleet_sidecar.allocator import Extent
    from lorafleet_sidecar.arena import Arena
    from lorafleet_sidecar.packed import Key, Packed
    from lorafleet_sidecar.received import ReceivedMap
    from lorafleet_sidecar.staging_plan import StagingPlan

_NOTHING: Mapping[Key, Sealed] = {}


class Sealed(NamedTuple):
    """What one packed tensor is known by."""

    sha256: str
    fingerprint: int | None  # of B as the engine scales it; None: not finite then


class Seal(NamedTuple):
    """What a complete image is known by: its digest, and what the engine proves its slots with."""

    digest: str
    proofs: dict[str, tuple[int, int]]  # module -> fingerprints of A and of the scaled B
    hashes: dict[str, tuple[str, str]]  # module -> SHA-256 of the packed A and B, hex


class _Reading:
    """Packed tensors of one image that are read in the threads of `hashing`."""

    def __init__(
        self, arena: Arena, extent: Extent, layout: CanonicalLayout, hashing: Executor
    ) -> None:
        self.tensors = packed_tensors(layout)
        self._arena, self._extent, self._dtype = arena, extent, layout.dtype
        self._hashing = hashing
        self._begun: dict[Key, Future[Sealed]] = {}

    def begin(self, keys: Iterable[Key]) -> None:
        """Read these tensors, which must be complete."""
        for key in keys:
            self._begun[key] = self._hashing.submit(self._read, self.tensors[key])

    def results(self) -> dict[Key, Sealed]:
        """Return what was begun; blocks until it is done."""
        return {key: each.result() for key, each in self._begun.items()}

    def drop(self) -> None:
        """Return when no thread reads any more."""
        wait([each for each in self._begun.values() if not each.cancel()])
        self._begun.clear()

    def _read(self, tensor: Packed) -> Sealed:
        at = self._extent.offset
        with self._arena.view[at + tensor.begin : at + tensor.end] as packed:
            digest = hashlib.sha256(packed).hexdigest()
            try:
                number = tensor_fingerprint(packed, tensor.shape, self._dtype, tensor.scaling)
            except OverflowError:
                return Sealed(digest, None)
            return Sealed(digest, number)


class Sealing:
    """Reads the packed tensors of one transfer as they become complete. One call at a time."""

    def __init__(self, plan: StagingPlan, arena: Arena, extent: Extent, hashing: Executor) -> None:
        self._plan = plan
        self._reading = _Reading(arena, extent, plan.layout, hashing)
        self._counted = bytes(len(plan.chunks))  # the map of received chunks at the last look
        self._feeds: list[Collection[Key]] | None = None
        self._awaited: Counter[Key] = Counter()  # how many chunks each incomplete tensor awaits

    def look(self, received: ReceivedMap, known: Collection[Key] = ()) -> None:
        """Begin to read what became complete since the last look, but for what is `known`.

        Blocks for as long as planning takes, the first time.
        """
        if self._feeds is None:
            self._feeds = self._plan_feeds(known)
            self._reading.begin(self._reading.tensors.keys() - known - self._awaited.keys())
        arrived, self._counted = received.arrived(self._counted)
        for index in arrived:
            for key in self._feeds[index]:
                self._awaited[key] -= 1
                if not self._awaited[key]:
                    del self._awaited[key]
                    self._reading.begin([key])

    def _plan_feeds(self, known: Collection[Key]) -> list[Collection[Key]]:
        feeding = Feeding(self._plan.layout)
        feeds: list[Collection[Key]] = []
        for chunk in self._plan.chunks:
            feeds.append(tuple(set(feeding.fed_by(*chunk)).difference(known)))
            self._awaited.update(feeds[-1])
        return feeds

    def results(self) -> dict[Key, Sealed]:
        """Return what the tensors that were complete are known by; blocks until they are read."""
        return self._reading.results()

    def drop(self) -> None:
        """Return when no thread reads the image any more."""
        self._reading.drop()


def seal(
    arena: Arena,
    extent: Extent,
    layout: CanonicalLayout,
    hashing: Executor,
    adapter: str,
    known: Mapping[Key, Sealed] = _NOTHING,
) -> Seal:
    """Return the digest and the fingerprints of a complete image.

    Blocks; reads the packed tensors in the threads of `hashing`, but for those that are `known`.
    Raises InvalidAdapter when a value of B is not finite once the engine has scaled it.
    """
    reading = _Reading(arena, extent, layout, hashing)
    reading.begin(key for key in reading.tensors if key not in known)
    read = {**known, **reading.results()}
    hashes = {name: (read[name, "a"].sha256, read[name, "b"].sha256) for name in layout.modules}
    proofs = {}
    for name, module in layout.modules.items():
        of_a, of_b = read[name, "a"].fingerprint, read[name, "b"].fingerprint
        if of_a is None or of_b is None:
            raise InvalidAdapter(
                f"adapter {adapter}: {name}.lora_B: not finite after the scaling in {layout.dtype} "
                f"(lora_alpha makes it {largest(module.scaling):g})"
            )
        proofs[name] = (of_a, of_b)
    digest = canonical_digest(layout.dtype, layout.modules, hashes)
    crash_at("stage.verified")
    return Seal(digest, proofs, hashes)
