"""Copies that repeat are done together, in whatever order their elements lie on both sides."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import InvalidAdapter
from lorafleet.header import SafetensorsHeader, TensorEntry
from lorafleet.layout import Copy
from lorafleet_sidecar.convert import DTYPES, PIECE, Converter, blocks

Array = np.ndarray[Any, Any]
ORDERS = list(permutations(range(3)))


def strides_of(shape: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Strides in elements of a dense array whose axes lie in `order`, outermost first."""
    strides, step = [0, 0, 0], 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return strides


def copies_of(
    shape: tuple[int, int, int],
    src: list[int],
    dst: list[int],
    dtypes: tuple[str, str] = ("BF16", "BF16"),
) -> list[Copy]:
    """A copy for each index of the first axis; strides in elements."""
    items = [DTYPES[dtype].itemsize for dtype in dtypes]
    return [
        Copy(
            index * src[0] * items[0],
            index * dst[0] * items[1],
            shape[2],
            *dtypes,
            rows=shape[1],
            src_row_stride=src[1],
            dst_row_stride=dst[1],
            src_step=src[2],
            dst_step=dst[2],
        )
        for index in range(shape[0])
    ]


def converted(copies: list[Copy], source: Array, size: int) -> bytearray:
    image = bytearray(b"\xee" * size)
    entry = TensorEntry("t.lora_B.weight", "F32", (1 << 30,), 0, 4 << 30)
    converter = Converter(SafetensorsHeader((entry,)), memoryview(image), "team-a/sql")
    converter.run(copies, memoryview(source.tobytes()), 0)
    return image


@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "BF16"), ("F32", "F32")])
@pytest.mark.parametrize("shape", [(130, 65, 33), (3, 64, 2048), (128, 40, 16), (1, 300, 300)])
def test_every_order_of_axes_gives_the_transposed_array(
    shape: tuple[int, int, int], dtypes: tuple[str, str]
) -> None:
    values = (np.arange(prod(shape)) % 251).astype(DTYPES[dtypes[0]])
    wanted = values.astype(DTYPES[dtypes[1]])
    for src_order in ORDERS:
        source = wanted.reshape([shape[axis] for axis in src_order]).transpose(
            np.argsort(src_order)
        )
        for dst_order in ((0, 1, 2), (0, 2, 1)):
            strides = strides_of(shape, src_order), strides_of(shape, dst_order)
            copies = copies_of(shape, *strides, dtypes)
            image = converted(copies, values, wanted.nbytes)
            assert image == source.transpose(dst_order).tobytes(), (src_order, dst_order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_family_of_copies_is_one_block(order: tuple[int, int, int]) -> None:
    shape = (128, 40, 16)
    copies = copies_of(shape, strides_of(shape, order), strides_of(shape, (0, 1, 2)))
    (block,) = blocks(reversed(copies))
    assert block.shape == shape


def test_a_factor_that_all_share_is_one_block_too() -> None:
    shape = (4, 8, 32)
    values = np.arange(256).astype(DTYPES["BF16"])
    copies = copies_of(shape, [0, 1, 8], strides_of(shape, (0, 1, 2)))
    assert [block.shape for block in blocks(copies)] == [shape]
    image = converted(copies, values, 4 * values.nbytes)
    assert image == values.reshape(32, 8).T.tobytes() * 4


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_copies_at_any_distances_are_each_done(data: st.DataObject) -> None:
    source = np.arange(400, dtype=np.float32)
    places = data.draw(st.lists(st.integers(0, 19), unique=True, min_size=1, max_size=8))
    copies, wanted = [], np.full(400, np.nan, np.float32)
    for place in places:
        start = data.draw(st.integers(0, 300))
        rows, elements = data.draw(st.sampled_from([(1, 4), (2, 2), (2, 4), (1, 0)]))
        copies.append(
            Copy(4 * start, 80 * place, elements, "F32", "F32", rows, 11, 5, data.draw(STEPS), 1)
        )
        for row in range(rows):
            for element in range(elements):
                at = start + row * 11 + element * copies[-1].src_step
                wanted[20 * place + row * 5 + element] = source[at]
    image = np.frombuffer(converted(copies, source, 1600), np.float32)
    written = ~np.isnan(wanted)
    assert (image[written] == wanted[written]).all()
    assert (image[~written] == np.frombuffer(b"\xee" * 4, np.float32)).all()


STEPS = st.sampled_from([1, 2])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_of_a_turned_block_is_named_after_its_tensor(
    order: tuple[int, int, int], bad: float
) -> None:
    shape = (96, 40, 32)
    values = np.ones(prod(shape), np.float32)
    values[PIECE + 7] = bad
    item = values.itemsize
    header = SafetensorsHeader(
        (
            TensorEntry("first", "F32", (PIECE + 7,), 0, item * (PIECE + 7)),
            TensorEntry("second", "F32", (1,), item * (PIECE + 7), item * (PIECE + 8)),
            TensorEntry("third", "F32", (1,), item * (PIECE + 8), values.nbytes),
        )
    )
    converter = Converter(header, memoryview(bytearray(values.nbytes)), "team-a/sql")
    copies = copies_of(shape, strides_of(shape, order), strides_of(shape, (0, 1, 2)), ("F32",) * 2)
    with pytest.raises(InvalidAdapter, match=r"non-finite values in second$"):
        converter.run(copies, memoryview(values).cast("B"), 0)
