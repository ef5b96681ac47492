"""When a step's metadata may stay although slots changed hands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lorafleet_vllm.mapping import same_for


def mapping(*ids: int) -> SimpleNamespace:
    return SimpleNamespace(index_mapping=ids, prompt_mapping=ids)


@pytest.mark.parametrize(
    ("ids", "before", "after", "same"),
    [
        ((1, 1), (1, None), (1, 2), True),  # another adapter was loaded
        ((1, 1), (1, 2), (1, None), True),  # or unloaded
        ((1, 0), (1, 2), (1, 3), True),
        ((0, 0), (1, 2), (3, 4), True),  # the base model uses no slot
        ((2, 1), (1, 2), (2, 1), False),  # they changed places
        ((1, 1), (1, 2), (3, 1), False),
        ((1, 1), (None, 2), (1, 2), False),
        ((1, 1), None, (1, 2), False),
        ((1, 1), (1,), (1, 2), False),
    ],
)
def test_only_slots_that_the_step_uses_count(
    ids: tuple[int, ...],
    before: tuple[int | None, ...] | None,
    after: tuple[int | None, ...],
    same: bool,
) -> None:
    assert same_for(mapping(*ids), before, after) is same
