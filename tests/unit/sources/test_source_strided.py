"""A view with strides reads as its elements in row order, in whatever pieces it is read."""

from __future__ import annotations

import asyncio
from math import prod

import numpy as np
from fuzzing.blob import Blob
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet_operator.sources.strided import StridedBlob, span


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_range_of_a_permuted_view_with_gaps_is_read_in_row_order(data: st.DataObject) -> None:
    item = data.draw(st.sampled_from([1, 2, 4, 8]))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)))
    strides, step = [0] * len(shape), data.draw(st.integers(1, 2))
    for axis in data.draw(st.permutations(range(len(shape)))):
        strides[axis], step = step, step * shape[axis]
    start = data.draw(st.integers(0, 9))
    content = np.random.default_rng(0).bytes(start + span(shape, strides) * item)
    blob = StridedBlob(Blob(content), start, shape, tuple(strides), item)
    offset = data.draw(st.integers(0, prod(shape) * item - 1))
    length = data.draw(st.integers(1, prod(shape) * item - offset))
    elements = [
        content[at : at + item]
        for index in np.ndindex(shape)
        for at in [start + item * sum(i * stride for i, stride in zip(index, strides, strict=True))]
    ]
    wanted = b"".join(elements)[offset : offset + length]
    assert bytes(asyncio.run(blob.read(offset, length))) == wanted
