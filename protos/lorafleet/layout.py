"""From a source's header to the canonical image: what is copied where, and the transfer's cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.header import SafetensorsHeader
    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import EngineProfile, ModuleKind


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of the canonical data section: byte `offset` in it, and its shape."""

    offset: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CanonicalModule:
    """One LoRA pair as the engine uses it; experts of one projection are one module.

    `scaling` is one number, or one for each expert when they differ.
    """

    kind: ModuleKind
    rank: int
    scaling: float | tuple[float, ...]
    a: PackedTensor
    b: PackedTensor


@dataclass(frozen=True)
class Copy:
    """`rows` runs of `elements` elements from the source's data into canonical data.

    Offsets are in bytes from the start of each data section; strides and steps are in
    elements of that side's dtype. Element j of row i goes from
    `src_offset + (i * src_row_stride + j * src_step) * itemsize` to the like place of dst.
    With the defaults it is one contiguous run. Dtypes are safetensors names.
    """

    src_offset: int
    dst_offset: int
    elements: int
    src_dtype: str
    dst_dtype: str
    rows: int = 1
    src_row_stride: int = 0
    dst_row_stride: int = 0
    src_step: int = 1
    dst_step: int = 1


class CanonicalLayout:
    """The plan of one adapter's canonical image; made by `plan_layout`."""

    modules: dict[str, CanonicalModule]
    dtype: str  # torch's name: "bfloat16", "float16", "float32"
    rank: int  # the largest of its modules
    data_bytes: int  # of the canonical data section
    image_header: bytes  # length prefix and JSON; the data section follows it
    config_json: bytes  # the canonical adapter_config.json
    zero_fill: tuple[tuple[int, int], ...]  # (offset, length) ranges that no copy writes
    normalized: tuple[str, ...]  # rewrites that were needed, for the condition of that name
    notes: tuple[str, ...]  # warnings for people

    def copies(self, begin: int, end: int) -> Iterator[Copy]:
        """Yield the copies that bytes [begin, end) of the source's data section feed.

        The range must be one entry of the chunk plan: its ends fall on element borders.
        """
        raise NotImplementedError

    def revision_json(self, digest: str, extent_offset: int, extent_bytes: int) -> dict[str, Any]:
        """Return `revision.json` of docs/architecture.md for an extent in the arena."""
        raise NotImplementedError


def chunk_plan(header: SafetensorsHeader, chunk_bytes: int) -> list[tuple[int, int]]:
    """Cut the data section into (offset, length) ranges of at most `chunk_bytes`.

    Every cut falls on an element border. Raises ValueError if `chunk_bytes` is below 16.
    """
    raise NotImplementedError


def plan_layout(
    header: SafetensorsHeader,
    config: AdapterConfig,
    profile: EngineProfile,
    *,
    adapter: str,
    allow_base_mismatch: bool = False,
) -> CanonicalLayout:
    """Check `adapter` against the engine and return its canonical layout.

    Raises InvalidAdapter, RankTooHigh or BaseModelMismatch with one line for people.
    """
    raise NotImplementedError
