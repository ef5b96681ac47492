"""First and last steps of an image: clear what no chunk carries; hash it, write its files."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from typing import TYPE_CHECKING

from lorafleet.digest import canonical_digest
from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES

from lorafleet_sidecar import index
from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.paths import CONFIG, REVISION, REVISIONS, hex_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from lorafleet.layout import CanonicalLayout, PackedTensor

    from lorafleet_sidecar.allocator import Extent
    from lorafleet_sidecar.arena import Arena


IDENTITY = "AdapterIsIdentity"
"""Note of a revision whose every lora_B is zero."""
_LOOK_BYTES = 1 << 20


def clear(arena: Arena, extent: Extent, layout: CanonicalLayout) -> None:
    """Write the header and the zeros of an image, before any chunk of it."""
    head = len(layout.image_header)
    with arena.extent_view(extent) as image:
        image[:head] = layout.image_header
        for offset, length in layout.zero_fill:
            _zero(image[head + offset : head + offset + length])
        _zero(image[head + layout.data_bytes :])  # nothing of the extent's last owner stays


def seal(arena: Arena, extent: Extent, layout: CanonicalLayout, hashing: ThreadPoolExecutor) -> str:
    """Return the canonical digest of a complete image.

    Blocks; hashes the packed tensors in the threads of `hashing`.
    """
    head, size = len(layout.image_header), ITEM_BYTES[SAFETENSORS_NAMES[layout.dtype]]
    with (
        arena.extent_view(extent) as image,
        image[head : head + layout.data_bytes] as data,
    ):
        pending = {
            name: (
                hashing.submit(_hash, data, module.a, size),
                hashing.submit(_hash, data, module.b, size),
            )
            for name, module in layout.modules.items()
        }
        hashes = {name: (a.result(), b.result()) for name, (a, b) in pending.items()}
    digest = canonical_digest(layout.dtype, layout.modules, hashes)
    crash_at("stage.verified")
    return digest


def is_identity(arena: Arena, extent: Extent, layout: CanonicalLayout) -> bool:
    """Whether every lora_B of a complete image is zero, so that the adapter changes nothing.

    Blocks; the first value that is not zero ends it.
    """
    head, size = len(layout.image_header), ITEM_BYTES[SAFETENSORS_NAMES[layout.dtype]]
    with arena.extent_view(extent) as image:
        for module in layout.modules.values():
            at, end = module.b.offset, module.b.offset + math.prod(module.b.shape) * size
            while at < end:
                step = min(_LOOK_BYTES, end - at)
                if bytes(image[head + at : head + at + step]).strip(b"\0"):
                    return False
                at += step
    return True


def write_revision(volume: Path, digest: str, extent: Extent, layout: CanonicalLayout) -> None:
    """Write `revisions/<hex>/`; the directory appears whole. It counts once the index says so."""
    target = volume / REVISIONS / hex_of(digest)
    partial = target.with_name(f".{target.name}.partial")
    for leftover in (partial, target):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(mode=0o755, parents=True)
    partial.chmod(0o755)  # whatever the umask: the engine may run as another user
    index.write_durably(partial / CONFIG, layout.config_json)
    text = json.dumps(layout.revision_json(digest, extent.offset, extent.size))
    index.write_durably(partial / REVISION, text.encode())
    partial.rename(target)
    index.sync_directory(target.parent)
    crash_at("stage.revision_written")


def _hash(data: memoryview, tensor: PackedTensor, itemsize: int) -> str:
    end = tensor.offset + math.prod(tensor.shape) * itemsize
    with data[tensor.offset : end] as packed:
        return hashlib.sha256(packed).hexdigest()


def _zero(view: memoryview) -> None:
    piece = bytes(min(len(view), 1 << 20))
    for at in range(0, len(view), len(piece) or 1):
        end = min(at + len(piece), len(view))
        view[at:end] = piece[: end - at]
    view.release()
