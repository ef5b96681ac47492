"""The safetensors header: parsed as hostile input, rendered for canonical images.

Format text: docs/format.md. Every check comes before any allocation by a promised size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, NamedTuple

from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import InvalidAdapter
from lorafleet.quoting import shown
from lorafleet.strict_json import StrictJsonError as _BadHeaderError
from lorafleet.strict_json import load_object
from lorafleet.uninterrupted import uninterrupted

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_TENSORS = 1 << 18
"""Seven times the largest adapter known; bounds what the parsed JSON takes in memory."""
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 512
_MAX_BYTES = 1 << 62
_METADATA = "__metadata__"


class TensorEntry(NamedTuple):
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
    if len(first8) < 8:
        raise InvalidAdapter(
            f"{file_name} is incomplete (have {len(first8)} bytes, a header needs at least 10)"
        )
    length = int.from_bytes(first8[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise InvalidAdapter(
            f"{file_name} is not a safetensors file: header of {length} bytes, "
            f"expected 2 to {MAX_HEADER_BYTES}"
        )
    return length


@uninterrupted()
def parse_header(
    json_bytes: bytes,
    data_bytes: int | None = None,
    file_name: str = "adapter_model.safetensors",
) -> SafetensorsHeader:
    """Return the checked header from its JSON text (without the length prefix).

    `data_bytes` is the size of the data section that exists, or None if unknown. Raises
    InvalidAdapter naming `file_name`, what was found and what was wanted.
    """
    try:
        raw = _load(json_bytes)
        metadata = _metadata(raw.pop(_METADATA, None))
        tensors = [_entry(name, info) for name, info in raw.items()]
        tensors.sort(key=attrgetter("begin", "end"))
        end = _covered(tensors)
    except _BadHeaderError as bad:
        raise InvalidAdapter(f"{file_name}: header {bad}") from None
    if data_bytes is not None and data_bytes != end:
        have, want = (8 + len(json_bytes) + size for size in (data_bytes, end))
        if have < want:
            raise InvalidAdapter(
                f"{file_name} is incomplete (have {have} bytes, header wants {want})"
            )
        raise InvalidAdapter(f"{file_name} has {have} bytes, its header describes {want}")
    return SafetensorsHeader(tuple(tensors), metadata, end)


def render_header(header: SafetensorsHeader, align: int = 8) -> bytes:
    """Return length prefix and JSON, padded with spaces so that data starts `align`-aligned."""
    # By hand: json.dumps takes four times as long for tens of thousands of tensors.
    entries = [
        f"{quoted(name)}:{rendered_kind(dtype, shape)}[{begin},{end}]}}"
        for name, dtype, shape, begin, end in header.tensors
    ]
    return join_header(entries, header.metadata, align)


def quoted(text: str) -> str:
    """Return `text` as a JSON string."""
    return encode_basestring_ascii(text)


def rendered_kind(dtype: str, shape: tuple[int, ...]) -> str:
    """Return the text between a tensor's name and its two offsets."""
    return f'{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":'


def join_header(entries: list[str], metadata: dict[str, str], align: int) -> bytes:
    """Return length prefix and JSON of rendered entries; see `render_header`."""
    if metadata:
        first = f'"{_METADATA}":{json.dumps(metadata, separators=(",", ":"))}'
        entries = [first, *entries]
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-(8 + len(text)) % align)
    return len(text).to_bytes(8, "little") + text


def _load(json_bytes: bytes) -> dict[str, Any]:
    """Return the header's object; structure is counted before it is built in memory."""
    if not json_bytes.startswith(b"{"):
        raise _BadHeaderError("does not begin with {")
    objects = json_bytes.count(b"{")
    if objects > MAX_TENSORS + 2:
        raise _BadHeaderError(f"has {objects} objects, at most {MAX_TENSORS} tensors")
    if json_bytes.count(b",") + json_bytes.count(b"[") > 16 * objects + MAX_TENSORS:
        raise _BadHeaderError("has more values than its tensors can need")
    return load_object(json_bytes, MAX_HEADER_BYTES, parse_float=_no_float)


def _no_float(text: str) -> float:
    raise _BadHeaderError(f"holds {shown(text, 40)}, expected only whole numbers")


def _metadata(raw: object) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise _BadHeaderError("has a __metadata__ that is not an object of strings")
    for key, value in raw.items():
        if not isinstance(value, str):
            raise _BadHeaderError(f"has a __metadata__.{shown(key)} that is not a string")
        try:
            (key + value).encode()
        except UnicodeEncodeError:
            raise _BadHeaderError("has a __metadata__ with a lone surrogate") from None
    return raw


def _entry(name: str, info: object) -> TensorEntry:
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise _BadHeaderError(
            f"has a tensor name that is too long or not printable: {shown(name, 80)}"
        )
    try:
        dtype, shape, (begin, end) = info["dtype"], info["shape"], info["data_offsets"]  # type: ignore[index]
    except (TypeError, KeyError, ValueError, IndexError):
        raise _BadHeaderError(
            f"entry {shown(name)}: expected dtype, shape and two data_offsets"
        ) from None
    item = ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item is None:
        found = shown(dtype, 40) if isinstance(dtype, str) else type(dtype).__name__
        raise _BadHeaderError(f"entry {shown(name)} has unknown dtype {found}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise _BadHeaderError(
            f"entry {shown(name)}: shape is not a list of at most {MAX_DIMENSIONS}"
        )
    size = item
    for dimension in shape:
        # `type is int` also keeps out true and false.
        if type(dimension) is not int or not 0 <= dimension <= _MAX_BYTES:
            found = str(dimension) if type(dimension) is int else type(dimension).__name__
            raise _BadHeaderError(f"entry {shown(name)}: shape holds {shown(found, 40)}")
        size *= dimension
        if size > _MAX_BYTES:
            raise _BadHeaderError(f"entry {shown(name)}: shape needs more than 2^62 bytes")
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= _MAX_BYTES:
        raise _BadHeaderError(
            f"entry {shown(name)}: data_offsets are not 0 <= begin <= end <= 2^62"
        )
    if end - begin != size:
        raise _BadHeaderError(
            f"entry {shown(name)}: data_offsets span {end - begin} bytes, "
            f"shape {shape} of {dtype} needs {size}"
        )
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _covered(tensors: list[TensorEntry]) -> int:
    """Return the data section's size; the tensors must cover it without hole or overlap."""
    position = 0
    for tensor in tensors:
        if tensor.begin != position:
            kind = "a hole" if tensor.begin > position else "an overlap"
            raise _BadHeaderError(
                f"leaves {kind} in the data before {shown(tensor.name)} "
                f"(begins at {tensor.begin}, expected {position})"
            )
        position = tensor.end
    return position
