"""First and last steps of an image: clear what no chunk carries; write a revision's files."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING

import numpy as np
from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES
from lorafleet.durable import sync_directory

from lorafleet_sidecar import index
from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.fingerprints import largest
from lorafleet_sidecar.paths import CONFIG, ORIGIN, REVISION, REVISIONS, hex_of

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.layout import CanonicalLayout, PackedTensor

    from lorafleet_sidecar.allocator import Extent
    from lorafleet_sidecar.arena import Arena
    from lorafleet_sidecar.sealing import Seal


IDENTITY = "AdapterIsIdentity"
"""Note of a revision that changes nothing."""
_LOOK_BYTES = 1 << 20


def clear(arena: Arena, extent: Extent, layout: CanonicalLayout) -> None:
    """Write the header and the zeros of an image, before any chunk of it."""
    head = len(layout.image_header)
    frame(arena, extent, layout)
    with arena.extent_view(extent) as image:
        for offset, length in layout.zero_fill:
            _zero(image[head + offset : head + offset + length])


def frame(arena: Arena, extent: Extent, layout: CanonicalLayout) -> None:
    """Write what is around the data of an image."""
    head = len(layout.image_header)
    with arena.extent_view(extent) as image:
        image[:head] = layout.image_header
        _zero(image[head + layout.data_bytes :])  # nothing of the extent's last owner stays


def is_identity(arena: Arena, extent: Extent, layout: CanonicalLayout) -> bool:
    """Whether no module of a complete image changes anything: zero A, zero B or zero scaling.

    Blocks; the first module that does ends it.
    """
    head, size = len(layout.image_header), ITEM_BYTES[SAFETENSORS_NAMES[layout.dtype]]
    with arena.extent_view(extent) as image, image[head:] as data:
        return not any(
            largest(module.scaling) and _any(data, module.b, size) and _any(data, module.a, size)
            for module in layout.modules.values()
        )


def _any(data: memoryview, tensor: PackedTensor, itemsize: int) -> bool:
    """Whether a value of the tensor is not zero (negative zeros are)."""
    values = np.dtype(f"<u{itemsize}")
    at, end = tensor.offset, tensor.offset + math.prod(tensor.shape) * itemsize
    while at < end:
        step = min(_LOOK_BYTES, end - at)
        if (np.frombuffer(data[at : at + step], values) << 1).any():  # without the sign
            return True
        at += step
    return False


def write_revision(
    volume: Path, seal: Seal, extent: Extent, layout: CanonicalLayout, origin: bytes = b""
) -> None:
    """Write `revisions/<hex>/`; the directory appears whole. It counts once the index says so.

    `origin`: see reuse.py; empty if nobody knows it.
    """
    target = volume / REVISIONS / hex_of(seal.digest)
    partial = target.with_name(f".{target.name}.partial")
    for leftover in (partial, target):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(mode=0o755, parents=True)
    partial.chmod(0o755)  # whatever the umask: the engine may run as another user
    index.write_durably(partial / CONFIG, layout.config_json)
    if origin:
        index.write_durably(partial / ORIGIN, origin)
    content = layout.revision_json(
        seal.digest, extent.offset, extent.size, seal.proofs, seal.hashes
    )
    text = json.dumps(content)
    index.write_durably(partial / REVISION, text.encode())
    partial.rename(target)
    sync_directory(target.parent)
    crash_at("stage.revision_written")


def _zero(view: memoryview) -> None:
    piece = bytes(min(len(view), 1 << 20))
    for at in range(0, len(view), len(piece) or 1):
        end = min(at + len(piece), len(view))
        view[at:end] = piece[: end - at]
    view.release()
