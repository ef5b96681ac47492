"""Name segments that training wrappers leave in keys: torch.compile, FSDP, DDP, PEFT's own.

Engines look modules up by name; a wrapper's segment makes every lookup fail, in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

PEFT_PREFIX = "base_model.model."
_ANYWHERE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_DDP_PREFIX = "module."


def without_wrappers(key: str, removed: Counter[str]) -> str:
    """Return the key without wrapper segments and PEFT's prefix; count them in `removed`."""
    if "_orig_mod" in key or "_wrapped_module" in key:
        segments = key.split(".")
        for segment in _ANYWHERE.intersection(segments):
            removed[segment + "."] += 1
        key = ".".join(segment for segment in segments if segment not in _ANYWHERE)
    peft = 0
    while True:
        if key.startswith(PEFT_PREFIX):
            key = key[len(PEFT_PREFIX) :]
            peft += 1
            if peft > 1:  # a model that was wrapped again before it was saved
                removed[PEFT_PREFIX] += 1
        elif key.startswith(_DDP_PREFIX):
            key = key[len(_DDP_PREFIX) :]
            removed[_DDP_PREFIX] += 1
        else:
            return key


def described(removed: Counter[str]) -> list[str]:
    """Return one line for each kind of prefix that was removed."""
    return [f"prefix removed: {name} ({count} keys)" for name, count in sorted(removed.items())]
