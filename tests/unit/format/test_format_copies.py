"""Chunks and copies: the plan covers the source, the copies and zeros cover the image."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_builders import config_text, header_text, pair, source
from format_cases import NUMPY, canonical_data, execute, plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import TooLarge, TransferInterrupted
from lorafleet.factors import Window
from lorafleet.header import SafetensorsHeader, TensorEntry, parse_header
from lorafleet.layout import chunk_plan
from lorafleet.moves import Moves, move

DTYPES = st.sampled_from(["F16", "BF16", "F32", "F64"])
ENTRIES = st.lists(
    st.tuples(DTYPES, st.lists(st.integers(0, 12), max_size=3).map(tuple)), max_size=8
)


@settings(deadline=None)
@given(ENTRIES, st.integers(16, 200), st.data())
def test_a_chunk_plan_covers_the_data_on_element_borders(
    entries: list[tuple[str, tuple[int, ...]]], step: int, data: st.DataObject
) -> None:
    named = [(f"t{index}", dtype, shape) for index, (dtype, shape) in enumerate(entries)]
    header = parse_header(header_text(named))
    tensors = len(header.tensors)
    cuts = sorted(data.draw(st.sets(st.integers(0, tensors - 1)))) if tensors else []
    position = 0
    plan = chunk_plan(header, step, cuts)
    borders = {header.tensors[index].begin for index in cuts} - {header.data_bytes}
    assert borders <= {offset for offset, _ in plan}
    for offset, length in plan:
        assert offset == position
        assert 0 < length <= step
        position += length
        for tensor in header.tensors:
            if tensor.begin < position < tensor.end:
                assert (position - tensor.begin) % ITEM_BYTES[tensor.dtype] == 0
    assert position == header.data_bytes
    assert len(chunk_plan(header, step)) <= 2 * header.data_bytes // step + 1


def test_absurd_plans_are_refused() -> None:
    header = SafetensorsHeader((TensorEntry("t", "U8", (1 << 60,), 0, 1 << 60),), {}, 1 << 60)
    with pytest.raises(TooLarge):
        chunk_plan(header, 4 << 20)
    with pytest.raises(TransferInterrupted, match="chunk_bytes is 15, expected 16 or more"):
        chunk_plan(header, 15)
    small = SafetensorsHeader((TensorEntry("t", "U8", (64,), 0, 64),), {}, 64)
    with pytest.raises(TransferInterrupted, match="cuts before tensors 0 to 1, there are 1"):
        chunk_plan(small, 16, (0, 1))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A window of some matrix, plain or turned, with a step between its elements or not."""
    rows, cols, step = (draw(st.integers(1, 6)) for _ in range(3))
    start, row_stride, col_stride = draw(st.integers(0, 5)), cols * step, step
    if draw(st.booleans()):
        row_stride, col_stride = step, rows * step
    size = start + (rows - 1) * row_stride + (cols - 1) * col_stride + 1
    begin = 8 * draw(st.integers(0, 3))
    dtype = draw(DTYPES)
    entry = TensorEntry("t", dtype, (size,), begin, begin + size * ITEM_BYTES[dtype])
    return Window(entry, start, rows, cols, row_stride, col_stride)


@settings(deadline=None, max_examples=400)
@given(windows(), st.integers(0, 3), DTYPES, st.lists(st.integers(0, 600), max_size=4))
def test_a_window_arrives_whole_however_it_is_cut(
    window: Window, padding: int, dtype: str, cuts: list[int]
) -> None:
    entry, item = window.entry, NUMPY[dtype].itemsize
    values = np.arange(1, entry.shape[0] + 1) % 250
    raw = bytes(entry.begin) + values.astype(NUMPY[entry.dtype]).tobytes()
    wide = window.cols + padding
    found = move(window, 3 * item, wide)
    assert found is not None
    moves = Moves([found], dtype)
    target = bytearray((3 + window.rows * wide) * item)
    unit = ITEM_BYTES[entry.dtype]
    borders = {entry.begin + min(cut, entry.shape[0]) * unit for cut in cuts}
    edges = sorted({0, len(raw), *borders})
    for begin, end in itertools.pairwise(edges):
        for copy in moves.copies(begin, end):
            execute(copy, memoryview(raw)[begin:end], begin, memoryview(target))
    got = np.frombuffer(target, NUMPY[dtype])[3:].reshape(window.rows, wide).astype(int)
    index = window.start + np.add.outer(
        np.arange(window.rows) * window.row_stride, np.arange(window.cols) * window.col_stride
    )
    assert (got[:, : window.cols] == values[index]).all()
    assert not got[:, window.cols :].any()


def moe_source(experts: dict[int, int], dtype: str) -> Any:
    """Return a source with gate_proj of layer 0 for experts of given ranks."""
    tensors: dict[str, Any] = pair("model.layers.1.self_attn.q_proj", 4, 64, 64)
    for expert, rank in experts.items():
        tensors |= pair(f"model.layers.0.mlp.experts.{expert}.gate_proj", rank, 64, 32)
    ranks = {f"experts.{expert}.gate_proj": rank for expert, rank in experts.items()}
    config = config_text(base="tiny/qwen3-moe", rank_pattern=ranks)
    return source(tensors, config, dtype)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.integers(0, 7), st.integers(1, 8), min_size=1),
    st.sampled_from(["F16", "BF16", "F32"]),
    st.sampled_from(["float16", "bfloat16", "float32", ""]),
    st.integers(16, 5000),
)
def test_copies_and_zeros_write_each_element_once(
    experts: dict[int, int], dtype: str, engine_dtype: str, step: int
) -> None:
    adapter = moe_source(experts, dtype)
    engine = replace(profile("qwen3-moe"), dtype=engine_dtype)
    layout = plan(adapter, engine)
    item = {"float32": 4}.get(layout.dtype, 2)
    written = np.zeros(layout.data_bytes // item, int)
    zeroed = np.zeros(layout.data_bytes // item, bool)
    for offset, length in layout.zero_fill:
        assert not zeroed[offset // item : (offset + length) // item].any()
        zeroed[offset // item : (offset + length) // item] = True
    for begin, length in chunk_plan(adapter.header, step):
        for copy in layout.copies(begin, begin + length):
            place = copy.dst_offset // item + np.add.outer(
                np.arange(copy.rows) * copy.dst_row_stride,
                np.arange(copy.elements) * copy.dst_step,
            )
            written[place] += 1
    assert written.max() == 1
    assert ((written == 1) | zeroed).all()
    assert written.sum() * ITEM_BYTES[dtype] == adapter.header.data_bytes


@settings(deadline=None, max_examples=20)
@given(st.integers(16, 3000), st.integers(16, 3000))
def test_the_image_does_not_depend_on_the_chunks(first: int, second: int) -> None:
    adapter = moe_source({0: 4, 3: 2, 7: 1}, "F32")
    layout = plan(adapter, profile("qwen3-moe"))
    assert canonical_data(adapter, layout, first) == canonical_data(adapter, layout, second)
    assert b"\xff\xff" not in canonical_data(adapter, layout, first)


def test_the_image_does_not_depend_on_the_order_of_the_source() -> None:
    tensors: dict[str, Any] = {}
    for module, wide, out in (("q_proj", 256, 256), ("v_proj", 256, 128), ("o_proj", 256, 256)):
        for layer in (0, 1):
            tensors |= pair(f"model.layers.{layer}.self_attn.{module}", 4, wide, out)
    one = source(tensors, config_text())
    other = source(dict(reversed(tensors.items())), config_text())
    engine = profile("qwen3-dense")
    layouts = plan(one, engine), plan(other, engine)
    assert layouts[0].image_header == layouts[1].image_header
    assert layouts[0].modules == layouts[1].modules
    assert canonical_data(one, layouts[0]) == canonical_data(other, layouts[1])


def test_neighbours_become_one_copy() -> None:
    tensors: dict[str, Any] = {}
    for expert in range(8):
        tensors |= {
            name: array
            for name, array in pair(
                f"model.layers.0.mlp.experts.{expert}.gate_proj", 4, 64, 32
            ).items()
            if "lora_A" in name
        }
    for expert in range(8):
        name = f"model.layers.0.mlp.experts.{expert}.gate_proj"
        tensors |= {k: v for k, v in pair(name, 4, 64, 32).items() if "lora_B" in k}
    adapter = source(tensors, config_text(base="tiny/qwen3-moe"))
    layout = plan(adapter, profile("qwen3-moe"))
    assert len(list(layout.copies(0, adapter.header.data_bytes))) == 1
