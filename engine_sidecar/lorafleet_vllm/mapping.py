"""Whether a step needs new metadata because slots changed hands since the last one.

vLLM makes it anew whenever any slot has, and waits for the device in it: every load or unload of an
adapter then cost everybody a whole step, though it concerned no request that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def same_for(
    mapping: Any, before: Sequence[int | None] | None, after: Sequence[int | None]
) -> bool:
    """Return whether the adapters of `mapping` (a LoRAMapping) are in the slots they were in.

    `before` and `after` say who is in each slot; `before` is None when nobody knows.
    """
    if before is None or len(before) != len(after):
        return False
    changed = {
        each for pair in zip(before, after, strict=True) if pair[0] != pair[1] for each in pair
    }
    # In almost every step nothing has changed: its tokens are not looked at then.
    return not changed or changed.isdisjoint((*mapping.index_mapping, *mapping.prompt_mapping))
