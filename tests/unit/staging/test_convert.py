"""Copies into the image: memcpy, casts, strides, and values that are not finite."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lorafleet.errors import InvalidAdapter
from lorafleet.header import SafetensorsHeader, TensorEntry
from lorafleet.layout import Copy
from lorafleet_sidecar.convert import DTYPES, PIECE, Converter

HEADER = SafetensorsHeader(
    tensors=(
        TensorEntry("first.lora_A.weight", "F32", (4,), 0, 16),
        TensorEntry("second.lora_B.weight", "F32", (1 << 30,), 16, 16 + (4 << 30)),
    )
)


def run(copy: Copy, source: np.ndarray[Any, Any], target_bytes: int, begin: int = 0) -> bytes:
    image = bytearray(b"\xee" * target_bytes)
    Converter(HEADER, memoryview(image), "team-a/sql").run(
        [copy], memoryview(source.tobytes()), begin
    )
    return bytes(image)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_equal_dtypes_are_copied_byte_for_byte(dtype: str) -> None:
    values = np.linspace(-3, 3, 1001).astype(DTYPES[dtype])
    copy = Copy(0, 0, 1001, dtype, dtype)
    assert run(copy, values, values.nbytes) == values.tobytes()


@pytest.mark.parametrize("source", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("target", ["F32", "F16", "BF16"])
def test_a_cast_rounds_as_numpy_and_ml_dtypes_do(source: str, target: str) -> None:
    values = np.linspace(-3, 3, PIECE + 17).astype(DTYPES[source])
    wanted = values.astype(DTYPES[target])
    copy = Copy(0, 0, values.size, source, target)
    assert run(copy, values, wanted.nbytes) == wanted.tobytes()


def test_offsets_count_from_each_data_section_and_need_no_alignment() -> None:
    values = np.arange(8, dtype=np.float32)
    copy = Copy(1000, 3, 8, "F32", "BF16")
    image = run(copy, values, 3 + 16 + 5, begin=1000)
    assert image[:3] == b"\xee" * 3
    assert image[3:19] == values.astype(ml_dtypes.bfloat16).tobytes()
    assert image[19:] == b"\xee" * 5


def test_strides_and_steps_move_each_element_to_its_place() -> None:
    source = np.arange(24, dtype=np.float32).reshape(4, 6)
    copy = Copy(
        src_offset=4,
        dst_offset=2,
        elements=2,
        src_dtype="F32",
        dst_dtype="F16",
        rows=3,
        src_row_stride=6,
        dst_row_stride=5,
        src_step=3,
        dst_step=2,
    )
    image = np.frombuffer(run(copy, source, 40), np.float16)
    for row in range(3):
        for element in range(2):
            assert image[1 + row * 5 + element * 2] == source[row, 1 + element * 3]
    untouched = [i for i in range(20) if i not in {1, 3, 6, 8, 11, 13}]
    assert image[untouched].tobytes() == b"\xee" * 2 * len(untouched)


def test_many_short_rows_are_copied_whole() -> None:
    source = np.arange(PIECE * 2, dtype=np.float32)
    copy = Copy(0, 0, 4, "F32", "F32", rows=PIECE // 2, src_row_stride=4, dst_row_stride=4)
    assert run(copy, source, source.nbytes) == source.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("source", "target"), [("F32", "F32"), ("BF16", "BF16"), ("F32", "F16")])
@pytest.mark.parametrize("place", [0, PIECE, PIECE + 1])
def test_a_value_that_is_not_finite_is_refused_by_its_tensors_name(
    bad: float, source: str, target: str, place: int
) -> None:
    values = np.zeros(PIECE + 2, DTYPES[source])
    values[place] = bad
    copy = Copy(16, 0, values.size, source, target)
    with pytest.raises(
        InvalidAdapter, match=r"team-a/sql: non-finite values in second\.lora_B\.weight"
    ):
        run(copy, values, values.nbytes, begin=16)


@pytest.mark.parametrize(("place", "name"), [(3, "first.lora_A"), (4, "second.lora_B")])
def test_a_bad_value_is_named_after_its_own_tensor_of_a_copy_through_two(
    place: int, name: str
) -> None:
    values = np.ones(PIECE + 9, np.float32)
    values[place] = np.nan
    with pytest.raises(InvalidAdapter, match=f"non-finite values in {name}"):
        run(Copy(0, 0, values.size, "F32", "BF16"), values, values.nbytes)


def test_a_value_that_overflows_in_the_cast_is_told_apart() -> None:
    values = np.array([1, 7e4, 2, 3], np.float32)
    with pytest.raises(
        InvalidAdapter, match=r"first\.lora_A\.weight: not finite after the cast to float16"
    ):
        run(Copy(0, 0, 4, "F32", "F16"), values, 8)


def test_the_largest_finite_values_pass() -> None:
    for dtype in ("BF16", "F16", "F32"):
        limit = ml_dtypes.finfo(DTYPES[dtype])
        values = np.array([limit.max, limit.min, limit.tiny], DTYPES[dtype])
        assert run(Copy(0, 0, 3, dtype, dtype), values, values.nbytes) == values.tobytes()


@pytest.mark.parametrize(
    "copy",
    [
        Copy(0, 4, 4, "F32", "F32"),
        Copy(4, 0, 4, "F32", "F32"),
        Copy(0, 0, 2, "F32", "F32", 2, 0, 4),
    ],
)
def test_a_copy_that_leaves_its_buffer_is_never_made(copy: Copy) -> None:
    with pytest.raises((ValueError, TypeError)):
        run(copy, np.zeros(4, np.float32), 16)
