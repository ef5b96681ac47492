"""parse_header takes what the format text allows and refuses the rest in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from format_builders import header_text
from format_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import InvalidAdapter
from lorafleet.header import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    SafetensorsHeader,
    TensorEntry,
    header_length,
    parse_header,
    render_header,
)

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20
)


def one(**changes: Any) -> bytes:
    """Return a header of one tensor [2, 3] of F16, with fields replaced."""
    entry = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}
    return json.dumps({"t": {**entry, **changes}}).encode()


def test_a_good_header_is_sorted_by_place() -> None:
    text = (
        b'{"b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},'
        b'"__metadata__": {"format": "pt"},'
        b'"a": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}}   '
    )
    header = parse_header(text, 6)
    assert header.tensors == (
        TensorEntry("a", "BF16", (), 0, 2),
        TensorEntry("b", "F32", (1,), 2, 6),
    )
    assert (header.metadata, header.data_bytes) == ({"format": "pt"}, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "does not begin with {"),
        (b" {}", "does not begin with {"),
        (b"[]", "does not begin with {"),
        (b"{", "is not JSON"),
        (b'{"\xff": 1}', "is not UTF-8 (byte 2)"),
        (b'{"t": 1}', "entry t: expected dtype, shape and two data_offsets"),
        (b'{"t": []}', "entry t: expected dtype"),
        (b'{"t": "abc"}', "entry t: expected dtype"),
        (b'{"a\\nb": {}}', "not printable: a\\nb"),
        (b'{"\\ud800": {}}', "not printable"),
        (one(dtype="F4"), "unknown dtype F4"),
        (one(dtype=["F16"]), "unknown dtype list"),
        (one(shape=[2, 4]), "span 12 bytes, shape [2, 4] of F16 needs 16"),
        (one(shape=[2, True]), "shape holds bool"),
        (one(shape=[-2, -3]), "shape holds -2"),
        (one(shape=[[]]), "shape holds list"),
        (one(shape={"0": 6}), "shape is not a list"),
        (one(shape=[1] * 9), "shape is not a list of at most 8"),
        (one(shape=[1 << 40, 1 << 40]), "needs more than 2^62 bytes"),
        (one(shape=[1 << 63, 0]), "shape holds 9223372036854775808"),
        (one(shape=[1.5]), "holds 1.5, expected only whole numbers"),
        (one(data_offsets=[12, 0]), "data_offsets are not 0 <= begin <= end"),
        (one(data_offsets=[-12, 0]), "data_offsets are not 0 <= begin <= end"),
        (one(data_offsets=[0, 12, 13]), "two data_offsets"),
        (one(data_offsets=[4, 16]), "hole in the data before t (begins at 4, expected 0)"),
        (b'{"t": NaN}', "holds NaN"),
        (b'{"__metadata__": []}', "__metadata__ that is not an object"),
        (b'{"__metadata__": {"a": 1}}', "__metadata__.a that is not a string"),
        (b'{"__metadata__": {"a": "\\ud800"}}', "lone surrogate"),
        (b'{"t": {}, "t": {}}', "two entries named t"),
        (b'{"t": {"dtype": "F16", "dtype": "F32"}}', "two entries named dtype"),
        (b'{"t":' + b"[" * 100_000, "nested too deeply"),
        (b'{"t": ' + b"1" * 5000 + b"}", "is not JSON"),
        (b"{" + b"{" * (MAX_TENSORS + 2), f"at most {MAX_TENSORS} tensors"),
        (b'{"t": [' + b"1," * (MAX_TENSORS + 20), "more values than its tensors can need"),
        (b"{" + b" " * MAX_HEADER_BYTES, "100000001 bytes, at most 100000000"),
    ],
)
def test_a_bad_header_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(InvalidAdapter) as refused:
        parse_header(text)
    assert message in str(refused.value)
    assert str(refused.value).isprintable()


def test_overlap_is_refused() -> None:
    text = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]},
        }
    ).encode()
    with pytest.raises(InvalidAdapter, match="leaves an overlap in the data before b"):
        parse_header(text)


def test_a_short_file_says_what_it_has_and_wants() -> None:
    raw = (CASES / "d46-truncated-download/adapter_model.safetensors").read_bytes()
    length = header_length(raw[:8])
    with pytest.raises(InvalidAdapter) as refused:
        parse_header(raw[8 : 8 + length], len(raw) - 8 - length, "a/b.safetensors")
    assert (
        str(refused.value) == "a/b.safetensors is incomplete (have 10256 bytes, header wants 15384)"
    )


def test_a_long_file_is_refused() -> None:
    with pytest.raises(InvalidAdapter, match=r"has 86 bytes, its header describes 85"):
        parse_header(one(), 13)


@pytest.mark.parametrize("first8", [b"", b"1234567", bytes(8), b"\x01" + bytes(7), b"\xff" * 8])
def test_a_bad_length_is_refused(first8: bytes) -> None:
    with pytest.raises(InvalidAdapter):
        header_length(first8)


def test_the_longest_header_is_allowed() -> None:
    assert header_length(MAX_HEADER_BYTES.to_bytes(8, "little")) == MAX_HEADER_BYTES


@settings(deadline=None)
@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(["F16", "BF16", "F32", "F64"]), SHAPES)),
    st.dictionaries(NAMES, st.text(st.characters(codec="utf-8")), max_size=3),
    st.sampled_from([1, 8, 64, 256]),
)
def test_what_is_rendered_reads_back(
    tensors: dict[str, Any], metadata: dict[str, str], align: int
) -> None:
    tensors.pop("__metadata__", None)
    text = header_text([(name, dtype, shape) for name, (dtype, shape) in tensors.items()])
    header = parse_header(text)
    header = SafetensorsHeader(header.tensors, metadata, header.data_bytes)
    raw = render_header(header, align)
    assert len(raw) % align == 0
    length = header_length(raw[:8])
    assert len(raw) == 8 + length
    assert parse_header(raw[8:], header.data_bytes) == header


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_mutated_headers_raise_only_our_error(data: st.DataObject) -> None:
    text = bytearray(header_text([("a", "F16", (2, 3)), ("b", "F32", (4,))], format="pt"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not text:
            break
    found = outcome(bytes(text))
    if isinstance(found, str):
        assert found.isprintable()
    else:
        assert found.data_bytes == sum(t.end - t.begin for t in found.tensors)


def outcome(text: bytes) -> SafetensorsHeader | str:
    try:
        return parse_header(text)
    except InvalidAdapter as refused:
        return str(refused)
