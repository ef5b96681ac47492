"""How a fill becomes copies: which way each tensor goes, how many calls it takes, and every bit."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_vllm.copies import Copies, Detour, Move
from lorafleet_vllm.copy2d import Pitched, pitched, rows_of
from lorafleet_vllm.pieces import ALL, Fill, Piece
from lorafleet_vllm.slot_factors import factor_a, factor_b
from lorafleet_vllm.slots import GROUP_BYTES, LayerFill, SlotPlan, grouped, write_layer, write_plan
from lorafleet_vllm.writing import Blank, Writing
from plain_slot import plainly
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MIB = 1 << 20


class Calls(TorchDispatchMode):
    """Counts what torch is asked to do; what changes no memory is left out."""

    VIEWS = ("select", "view", "slice", "split", "as_strided", "permute", "squeeze", "transpose")

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func.overloadpacket.__name__
        if not name.startswith(self.VIEWS):
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


def values(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def slots(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full((3, *shape), 7, dtype=dtype)


def neighbours(*shapes: Sequence[int]) -> list[torch.Tensor]:
    """Return tensors that lie one after the other, as in the arena."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = values(sum(sizes)).split(sizes)
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def is_right(fills: Sequence[Fill]) -> bool:
    """Write to slot 1 and compare bits; the others' slots must not change."""
    write_layer(LayerFill(tuple(fills)), Writing(1, Blank()))
    return all(
        torch.equal(fill.slots[1], plainly(fill)) and bool((fill.slots[::2] == 7).all())
        for fill in fills
    )


# -- rows ----------------------------------------------------------------------------------------


def by_rows(target: torch.Tensor, source: torch.Tensor, rows: Pitched) -> None:
    """Copy as the driver's 2D copy does."""
    for row in range(rows.height):
        ctypes.memmove(
            target.data_ptr() + row * rows.target_pitch,
            source.data_ptr() + row * rows.source_pitch,
            rows.width,
        )


CUTS = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))] * 3)


def cut(shape: Sequence[tuple[int, int, int]], which: Sequence[bool]) -> torch.Tensor:
    """Return a view [sizes] of a larger tensor, cut out of the dimensions that `which` says."""
    sizes = [sum(part) if inside else part[1] for part, inside in zip(shape, which, strict=True)]
    whole = torch.arange(torch.Size(sizes).numel(), dtype=torch.int16).view(sizes)
    for dimension, ((before, size, _), inside) in enumerate(zip(shape, which, strict=True)):
        if inside:
            whole = whole.narrow(dimension, before, size)
    return whole


BOOLS = st.tuples(*[st.booleans()] * 3)


@given(shape=CUTS, left=BOOLS, right=BOOLS)
def test_one_call_copies_what_both_sides_have_in_rows(shape: Any, left: Any, right: Any) -> None:
    source, target = cut(shape, left), cut(shape, right)
    rows = pitched(target, source)
    if rows is None:
        assert None in (rows_of(target), rows_of(source)) or rows_of(target) != rows_of(source)
        return
    assert rows.width * rows.height == source.nbytes
    around = target._base if target._base is not None else target
    around.fill_(-1)
    by_rows(target, source, rows)
    assert torch.equal(target, source)
    assert int((around != -1).sum()) == source.numel()


@pytest.mark.parametrize(
    ("view", "width", "count"),
    [
        (values(8, 4, 64), 8 * 4 * 64 * 2, 1),
        (values(8, 4, 64)[..., 32:], 64, 32),  # columns of A on one of two ranks
        (values(8, 64, 4)[:, 32:], 32 * 4 * 2, 8),  # rows of B on one of two ranks
        (values(8, 4, 64)[:, :2], 2 * 64 * 2, 8),  # rank below the slot's
        (values(1, 4, 64)[:, :2], 2 * 64 * 2, 1),
        (values(8, 4, 64)[2:6], 4 * 4 * 64 * 2, 1),  # experts of one rank
    ],
)
def test_slices_of_ranks_are_evenly_spaced_rows(view: torch.Tensor, width: int, count: int) -> None:
    rows = rows_of(view)
    assert rows is not None
    assert (rows.width, rows.height) == (width, count)


def test_what_is_not_evenly_spaced_has_no_rows() -> None:
    whole = values(8, 6, 64)
    for view in (whole.mT, whole[:, :4, :32], whole[:1].expand(8, -1, -1)):
        assert rows_of(view) is None


# -- ways ----------------------------------------------------------------------------------------

BIG = 9  # experts that make these tensors larger than what travels together


def moves(fill: Fill) -> list[tuple[bool, bool]]:
    """Return (2D, through a temporary) of each copy."""
    copies = Copies([fill])
    ways = [*copies.first, *copies.rest, *copies.detours]
    assert all(isinstance(way, Move | Detour) for way in ways)
    return [(way.rows is not None, isinstance(way, Detour)) for way in ways]


WAYS: dict[str, tuple[Callable[[], Fill], list[tuple[bool, bool]]]] = {
    "all of a slot": (
        lambda: factor_a("x", slots(BIG, 64, 1024), values(BIG, 64, 1024)),
        [(False, False)],
    ),
    "columns of A": (
        lambda: factor_a("x", slots(BIG, 64, 1024), values(BIG, 64, 2048)[..., 1024:]),
        [(True, False)],
    ),
    "narrow columns of A": (
        lambda: factor_a("x", slots(BIG, 64, 64), values(BIG, 64, 128)[..., 64:]),
        [(True, False)],
    ),
    "rows of B": (
        lambda: factor_b("x", slots(BIG, 1024, 64), values(BIG, 2048, 64)[:, 1024:], 0.3),
        [(True, False)],
    ),
    "A below the slot's rank": (
        lambda: factor_a("x", slots(BIG, 128, 1024), values(BIG, 64, 1024)),
        [(True, False)],
    ),
    "B below the slot's rank, in rows wide enough": (
        lambda: factor_b("x", slots(BIG, 1024, 128), values(BIG, 1024, 64), 0.3),
        [(True, False)],
    ),
    "B below the slot's rank": (
        lambda: factor_b("x", slots(BIG, 1024, 128), values(BIG, 1024, 63), 0.3),
        [(False, True)],
    ),
    "columns of A below the slot's rank": (
        lambda: factor_a("x", slots(BIG, 128, 1024), values(BIG, 64, 2048)[..., 1024:]),
        [(True, True)],
    ),
    "rows of B below the slot's rank": (
        lambda: factor_b("x", slots(BIG, 1024, 128), values(BIG, 2048, 64)[:, 1024:], 0.3),
        [(True, True)],
    ),
    "A of an embedding": (
        lambda: Fill(
            slots(10_000, 128),
            (Piece((slice(None), slice(64)), values(64, 10_000).mT),),
            ((slice(None), slice(64, None)),),
        ),
        [(False, True)],
    ),
    "a column slice of A of an embedding": (
        lambda: Fill(slots(10_000, 64), (Piece(ALL, values(64, 20_000)[:, 10_000:].mT),), ()),
        [(True, True)],
    ),
    "one for all experts": (
        lambda: factor_a("x", slots(3, 64, 1024), values(1, 64, 1024).expand(3, -1, -1)),
        [(False, False)] * 3,
    ),
    "another dtype": (
        lambda: factor_b("x", slots(2, 64, 8), values(2, 64, 8, dtype=torch.float32), 0.3),
        [(False, True)],
    ),
    "a scaling for each expert": (
        lambda: factor_b(
            "x", slots(2, 64, 8), values(2, 64, 8), torch.tensor([0.3, 7.1]).view(-1, 1, 1)
        ),
        [(False, False)],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_each_tensor_takes_its_way_and_every_bit_arrives(name: str) -> None:
    make, expected = WAYS[name]
    fill = make()
    assert moves(fill) == expected
    assert is_right([fill])


def test_a_rank_that_holds_no_row_copies_nothing() -> None:
    fill = factor_a("x", slots(2, 4, 64), values(2, 4, 64)[:, 4:])
    assert moves(fill) == []
    assert is_right([fill])


# -- small ones travel together ------------------------------------------------------------------


def dense(
    layers: int, rank: int, limit: int, dtype: torch.dtype = torch.bfloat16
) -> list[LayerFill]:
    """Return an adapter of two pairs a layer, of neighbours in memory."""
    shapes = [(rank, 96), (64, rank), (rank, 64), (128, rank)]
    sources = iter(neighbours(*shapes * layers))
    found = []
    for layer in range(layers):
        a, b, c, d = (
            next(sources).to(dtype) if dtype != torch.bfloat16 else next(sources) for _ in shapes
        )
        found.append(
            LayerFill(
                (
                    factor_a("x", slots(1, limit, 96, dtype=dtype), a),
                    factor_b("x", slots(1, 64, limit, dtype=dtype), b, 0.3),
                    factor_a("y", slots(1, limit, 64, dtype=dtype), c),
                    factor_b("y", slots(1, 128, limit, dtype=dtype), d, 1.0 + layer),
                )
            )
        )
    return found


@pytest.mark.parametrize(("rank", "limit"), [(4, 8), (8, 8), (1, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_tensors_arrive_bit_by_bit(rank: int, limit: int, dtype: torch.dtype) -> None:
    for layer in grouped(dense(5, rank, limit, dtype)):
        assert is_right(layer.fills)


def test_small_neighbours_cross_the_bus_in_one_copy() -> None:
    layers = dense(8, 8, 8)
    whole = LayerFill(tuple(fill for layer in layers for fill in layer.fills))
    (crate,) = whole.copies.detours
    assert [run.nbytes for run in crate.runs] == [whole.nbytes]
    assert not whole.copies.first + whole.copies.rest
    with Calls() as calls:
        write_layer(whole, Writing(1, Blank()))
    scaled = 2 * len(layers) - 1  # one scaling is 1; on a GPU all of these are one call
    assert calls.names == {"new_empty": 1, "copy_": 1, "_foreach_copy_": 1, "mul_": scaled}


def test_zeros_of_small_slots_take_one_call() -> None:
    whole = LayerFill(tuple(fill for layer in dense(8, 4, 8) for fill in layer.fills))
    with Calls() as calls:
        write_layer(whole, Writing(1, Blank()))
    assert calls.names["_foreach_zero_"] == 1
    assert calls.names["zero_"] == 0


def test_a_gap_between_tensors_is_not_read() -> None:
    first, _, third = neighbours((4, 64), (4, 64), (4, 64))
    copies = Copies([factor_a("x", slots(1, 4, 64), each) for each in (third, first)])
    (crate,) = copies.detours
    assert [run.nbytes for run in crate.runs] == [first.nbytes, third.nbytes]


def test_a_group_needs_no_more_than_the_largest_layer() -> None:
    layers = dense(40, 4, 8)
    largest = max(sum(fill.slots[0].nbytes for fill in layer.fills) for layer in layers)
    groups = list(grouped(layers, largest))
    assert len(groups) < len(layers)
    assert max(group.nbytes for group in groups) <= largest
    assert sum(group.nbytes for group in groups) == sum(layer.nbytes for layer in layers)
    assert [fill for group in groups for fill in group.fills] == [
        fill for layer in layers for fill in layer.fills
    ]


def test_a_layer_with_large_tensors_ends_its_group() -> None:
    attention, experts = experts_model(1)
    for layers, expected in (
        ([attention, experts] * 3, [2, 2, 2]),
        ([experts, attention] * 3, [1, 2, 2, 1]),
        ([experts, experts], [1, 1]),
        ([attention] * 3, [1, 1, 1]),  # as much as one layer takes
        ([*[attention] * 3, experts], [4]),
    ):
        limit = max(sum(fill.slots[0].nbytes for fill in layer.fills) for layer in layers)
        sizes = [len(group.fills) // len(attention.fills) for group in grouped(layers, limit)]
        assert sizes == expected


def test_layers_without_tensors_are_cleared_together() -> None:
    untouched = [LayerFill((Fill(slots(1, 8, 64)), Fill(slots(1, 64, 8)))) for _ in range(50)]
    flags = torch.ones(4, dtype=torch.int)
    untouched.append(LayerFill((Fill(slots(4, 8, 64)),), disabled=(flags,)))
    plan = SlotPlan(tuple(grouped(untouched)))
    with Calls() as calls:
        write_plan(plan, 1)
    assert calls.names == {"_foreach_zero_": 1, "fill_": 1}
    assert not any(fill.slots[1].any() for layer in untouched for fill in layer.fills)
    assert flags.tolist() == [1, 0, 1, 1]


# -- the whole -----------------------------------------------------------------------------------


def experts_model(layers: int) -> list[LayerFill]:
    """Return a model of 128 experts' shape whose tensors are too large to travel together."""
    e, r, hidden, middle = 128, 8, 2048, 768
    found = []
    shared = {
        shape: slots(*shape)
        for shape in ((e, r, hidden), (e, middle, r), (e, r, middle), (e, hidden, r))
    }
    big = {shape: values(*shape) for shape in shared}
    for _ in range(layers):
        attention = neighbours(
            (r, hidden), (4096, r), (r, hidden), (512, r), (r, 4096), (hidden, r)
        )
        pairs = zip(attention[::2], attention[1::2], strict=True)
        fills = [
            fill
            for a, b in pairs
            for fill in (
                factor_a("x", slots(1, *a.shape), a),
                factor_b("x", slots(1, *b.shape), b, 0.5),
            )
        ]
        found.append(LayerFill(tuple(fills)))
        fills = []
        for a, b in (((e, r, hidden), (e, middle, r)),) * 2 + (((e, r, middle), (e, hidden, r)),):
            fills.append(factor_a("w", shared[a], big[a]))
            fills.append(factor_b("w", shared[b], big[b], 0.5))
        found.append(LayerFill(tuple(fills), (torch.zeros(4, dtype=torch.int),)))
    return found


def test_a_layer_of_experts_takes_a_dozen_calls() -> None:
    layers = 2
    plan = SlotPlan(tuple(grouped(experts_model(layers))))
    assert len(plan.layers) == layers  # attention goes with the experts
    for layer in plan.layers:
        (crate,) = layer.copies.detours
        assert sum(run.nbytes for run in crate.runs) <= GROUP_BYTES
        # B, which the device scales, is there before A.
        assert {move.source.shape[1:] for move in layer.copies.first} == {(768, 8), (2048, 8)}
        assert {move.source.shape[1:] for move in layer.copies.rest} == {(8, 768), (8, 2048)}
    with Calls() as calls:
        write_plan(plan, 1)
    # The crate of attention, its copy and its unpacking; six tensors of the experts; the flags.
    assert calls.names == {
        "new_empty": layers,
        "copy_": layers * (1 + 6),
        "_foreach_copy_": layers,
        "mul_": layers * (3 + 3),  # on a GPU two calls a layer
        "fill_": layers,
    }
