"""Buffers that are known to be blank are zeroed once, and again after anybody wrote to them."""

from __future__ import annotations

import torch
from lorafleet_vllm.pieces import Fill, Piece
from lorafleet_vllm.slots import LayerFill, write_layer
from lorafleet_vllm.writing import Blank, Writing


def buffers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((2, 1, 4, 8), 7.0), torch.full((2, 1, 8, 4), 7.0)


def test_a_blank_buffer_is_zeroed_once_in_each_slot() -> None:
    one, other = buffers()
    flags = torch.ones(3, dtype=torch.int32)
    empty, blank = LayerFill((Fill(one), Fill(other)), disabled=(flags,)), Blank()
    write_layer(empty, Writing(1, blank))
    assert not one[1].any()
    assert not other[1].any()
    assert flags.tolist() == [1, 0, 1]
    one[1], flags[1] = 3.0, 3
    write_layer(empty, Writing(1, blank))
    assert (one[1] == 3.0).all()  # it was not touched: it is known to be blank
    assert int(flags[1]) == 3
    write_layer(empty, Writing(0, blank))
    assert not one[0].any()


def test_what_was_written_is_zeroed_again() -> None:
    one, other = buffers()
    blank = Blank()
    flags = torch.zeros(3, dtype=torch.int32)
    empty = LayerFill((Fill(one), Fill(other)), disabled=(flags,))
    whole = (slice(None), slice(None))
    piece = Piece(whole, torch.ones(4, 8))
    write_layer(empty, Writing(0, blank))
    write_layer(
        LayerFill((Fill(one, (piece,), ()), Fill(other)), enabled=(flags,)), Writing(0, blank)
    )
    assert (one[0] == 1.0).all()
    assert int(flags[0]) == 1
    write_layer(empty, Writing(0, blank))
    assert not one[0].any()
    assert int(flags[0]) == 0


def test_after_others_wrote_everything_is_zeroed_again() -> None:
    one, other = buffers()
    blank, empty = Blank(), LayerFill((Fill(one), Fill(other)))
    write_layer(empty, Writing(0, blank))
    one[0] = 5.0
    blank.forget()
    write_layer(empty, Writing(0, blank))
    assert not one[0].any()
