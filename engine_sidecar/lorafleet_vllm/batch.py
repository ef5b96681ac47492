"""Many parts of slots, changed by one call: a launch for dozens of tensors instead of one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lorafleet_vllm.spot import Spot


class Batch:
    """Spots to which `apply`, one of torch._foreach_*, is applied in one slot.

    torch loops over the whole list if a single tensor in it is strided: these are kept apart.
    """

    def __init__(self, apply: Callable[..., object]) -> None:
        self._apply = apply
        self._dense: tuple[list[Spot], list[Any]] = ([], [])
        self._strided: tuple[list[Spot], list[Any]] = ([], [])

    def add(self, spot: Spot, argument: Any = None) -> None:
        """Append `spot`, with what `apply` takes beside it."""
        group = self._dense if spot.dense else self._strided
        group[0].append(spot)
        if argument is not None:
            group[1].append(argument)

    def enqueue(self, index: int) -> None:
        """Apply it to slot `index`, on the current stream."""
        for spots, arguments in (self._dense, self._strided):
            if spots:
                self._apply([spot.at(index) for spot in spots], *filter(None, [arguments]))


def multiply(targets: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    """Multiply each target by its scale, rounded as torch rounds a tensor times a Python number."""
    if targets[0].is_cuda:
        torch._foreach_mul_(targets, scales)
        return
    for target, scale in zip(targets, scales, strict=True):
        target.mul_(scale)  # on the CPU _foreach_mul_ rounds the number itself to bfloat16 first
