"""Many parts of slots, changed by one call: a launch for dozens of tensors instead of one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Batch:
    """Views [max_loras, ...] to which `apply`, one of torch._foreach_*, is applied at an index.

    torch loops over the whole list if a single tensor in it is strided: these are kept apart.
    """

    def __init__(self, apply: Callable[..., object]) -> None:
        self._apply = apply
        self._dense: tuple[list[torch.Tensor], list[Any]] = ([], [])
        self._strided: tuple[list[torch.Tensor], list[Any]] = ([], [])

    def add(self, targets: torch.Tensor, argument: Any = None) -> None:
        """Append `targets`, with what `apply` takes beside it."""
        group = self._dense if targets[0].is_contiguous() else self._strided
        group[0].append(targets)
        if argument is not None:
            group[1].append(argument)

    def enqueue(self, index: int) -> None:
        """Apply it to slot `index`, on the current stream."""
        for targets, arguments in (self._dense, self._strided):
            if targets:
                self._apply([each[index] for each in targets], *filter(None, [arguments]))


def multiply(targets: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    """Multiply each target by its scale, rounded as torch rounds a tensor times a Python number."""
    if targets[0].is_cuda:
        torch._foreach_mul_(targets, scales)
        return
    for target, scale in zip(targets, scales, strict=True):
        target.mul_(scale)  # on the CPU _foreach_mul_ rounds the number itself to bfloat16 first
