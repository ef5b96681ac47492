"""What an earlier revision of an adapter has of a transfer: copied within the arena, not sent again.

A manifest may say the digest of each tensor of its source. They are kept beside the revision that is
made of it, in the file ORIGIN: the identity of header, config and layout (32 bytes), then the digests
in the order of the tensors' offsets. A transfer of the same adapter whose ORIGIN begins alike puts the
same tensors at the same places, so what has the same digest there is the same here.

Each packed tensor of the earlier revision is hashed before it is copied, and has to be what it was
when that revision was committed. If one is not, nothing is taken, and all of it is sent.
"""

from __future__ import annotations

import hashlib
import json
import logging
from bisect import bisect_right
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.packed import Feeding, packed_tensors
from lorafleet_sidecar.paths import ORIGIN, REVISION
from lorafleet_sidecar.sealing import Sealed
from lorafleet_sidecar.staging_plan import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from lorafleet_sidecar.allocator import Extent
    from lorafleet_sidecar.arena import Arena
    from lorafleet_sidecar.packed import Key
    from lorafleet_sidecar.staging_plan import StagingPlan

log = logging.getLogger(__name__)

_LEAST_PART = 2
"""At least one in so many bytes has to be there: all that an earlier revision has is hashed."""


class Taken(NamedTuple):
    """What was copied: the chunks that it stands for, and the packed tensors that no other feeds."""

    chunks: list[int]
    known: dict[Key, Sealed]


def origin(plan: StagingPlan) -> bytes:
    """Return the content of ORIGIN, empty for a transfer whose tensors' digests nobody says."""
    manifest = plan.manifest
    if not manifest.tensor_digests:
        return b""
    parts = (plan.layout_key.encode(), manifest.safetensors_header, manifest.adapter_config)
    hashed = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(hashed).digest() + b"".join(manifest.tensor_digests)


def take_over(
    plan: StagingPlan,
    earlier: Mapping[Path, memoryview],
    arena: Arena,
    extent: Extent,
    hashing: Executor,
) -> Taken | None:
    """Fill an extent with what the best of the earlier revisions has; None if none has enough.

    earlier: folder -> image of revisions of the same layout. Blocks. The parts of the image that the
    other chunks feed hold anything afterwards, and so does all of it after None.
    """
    found = max(_candidates(plan, earlier), key=lambda each: each[1], default=None)
    if found is None or found[1] * _LEAST_PART < plan.header.data_bytes:
        return None
    folder, _, chunks = found
    known, tensors = _sealed(folder), packed_tensors(plan.layout)
    if not known.keys() >= tensors.keys():
        return None  # an older sidecar wrote it
    arena.populate(extent.offset, extent.offset + plan.image_bytes)
    with arena.extent_view(extent) as image:
        jobs = [
            hashing.submit(_copy, earlier[folder], image, each.begin, each.end, known[key].sha256)
            for key, each in tensors.items()
        ]
        wait(jobs)  # for all: none may still write when this has returned
    if not all(job.result() for job in jobs):
        log.warning("%s is damaged in the arena: nothing is taken from it", folder.name)
        return None
    feeding, others = Feeding(plan.layout), set(range(len(plan.chunks))).difference(chunks)
    fed = {key for index in others for key in feeding.fed_by(*plan.chunks[index])}
    return Taken(chunks, {key: known[key] for key in tensors if key not in fed})


def _candidates(
    plan: StagingPlan, earlier: Mapping[Path, memoryview]
) -> Iterator[tuple[Path, int, list[int]]]:
    """Yield (folder, bytes, chunks) of what each revision has of the transfer."""
    wanted = origin(plan)
    for folder in earlier:
        try:
            there = (folder / ORIGIN).read_bytes()
        except OSError:
            continue
        if len(there) != len(wanted) or there[:DIGEST_BYTES] != wanted[:DIGEST_BYTES]:
            continue
        ours, theirs = (
            np.frombuffer(each, np.uint64).reshape(-1, DIGEST_BYTES // 8)[1:]
            for each in (wanted, there)
        )
        changed = np.flatnonzero((ours != theirs).any(axis=1)).tolist()
        chunks = list(_apart(plan, changed))
        yield folder, sum(plan.chunks[index][1] for index in chunks), chunks


def _apart(plan: StagingPlan, changed: Sequence[int]) -> Iterator[int]:
    """Yield the chunks that hold nothing of these tensors."""
    tensors = [plan.header.tensors[index] for index in changed]
    begins, ends = [each.begin for each in tensors], [each.end for each in tensors]
    for index, (offset, length) in enumerate(plan.chunks):
        first = bisect_right(ends, offset)
        if first == len(tensors) or begins[first] >= offset + length:
            yield index


def _sealed(folder: Path) -> dict[Key, Sealed]:
    """Return what the packed tensors of a revision were when it was committed, as far as it says."""
    found: dict[Key, Sealed] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for name, module in json.loads((folder / REVISION).read_bytes())["modules"].items():
            for side, digest in module["sha256"].items():
                found[name, side] = Sealed(digest, int(module["proof"][side], 16))
    return found


def _copy(source: memoryview, target: memoryview, begin: int, end: int, sha256: str) -> bool:
    """Copy one packed tensor; return whether it is what it was."""
    with source[begin:end] as there, target[begin:end] as here:
        if hashlib.sha256(there).hexdigest() != sha256:
            return False
        # Lets other threads run, as assigning a slice does not.
        np.copyto(np.frombuffer(here, np.uint8), np.frombuffer(there, np.uint8))
    crash_at("reuse.copied")
    return True
