"""The safetensors header: parsed as hostile input, rendered for canonical images.

Format text: docs/format.md. Every check comes before any allocation by a promised size.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: `begin` and `end` are byte offsets in the data section.

    `dtype` is the safetensors name ("BF16", "F16", "F32", ...).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """A checked header: `tensors` sorted by `begin` cover [0, data_bytes) without holes."""

    tensors: tuple[TensorEntry, ...]
    metadata: dict[str, str] = field(default_factory=dict)
    data_bytes: int = 0


def header_length(first8: bytes, file_name: str = "adapter_model.safetensors") -> int:
    """Return the header's length from a file's first eight bytes.

    Raises InvalidAdapter when there are fewer bytes, or the length is below 2 or above 100 MB.
    """
    raise NotImplementedError


def parse_header(
    json_bytes: bytes,
    data_bytes: int | None = None,
    file_name: str = "adapter_model.safetensors",
) -> SafetensorsHeader:
    """Return the checked header from its JSON text (without the length prefix).

    `data_bytes` is the size of the data section that exists, or None if unknown. Raises
    InvalidAdapter naming `file_name`, what was found and what was wanted.
    """
    raise NotImplementedError


def render_header(header: SafetensorsHeader, align: int = 8) -> bytes:
    """Return length prefix and JSON, padded with spaces so that data starts `align`-aligned."""
    raise NotImplementedError
