"""Tensor names as PEFT's files have them, from those of a model that trains. Pure."""

from __future__ import annotations

import re
from typing import Final

_WRAPPERS: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_LEADING: Final = "module."
_FACTOR: Final = re.compile(r"^(?P<head>.*\.lora_[A-Za-z_]+)(?:\.(?P<rest>.+))?$")
_TAILS: Final = frozenset({"weight", "bias"})


def unwrapped(name: str) -> str:
    """Return `name` without what torch.compile, FSDP, checkpointing and DDP put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    while name.startswith(_LEADING):
        name = name.removeprefix(_LEADING)
    return name


def plain(name: str, adapter: str) -> str | None:
    """Return the name in a file of the adapter; None for what is no LoRA tensor of it.

    `...q_proj.lora_A.default.weight` of adapter `default` is `...q_proj.lora_A.weight`, and so is that
    itself.
    """
    found = _FACTOR.match(unwrapped(name))
    if found is None:
        return None
    head, rest = found["head"], found["rest"]
    if rest is None or rest in _TAILS:
        return head if rest is None else f"{head}.{rest}"
    if rest == adapter:
        return head
    tail = rest.removeprefix(f"{adapter}.")
    return f"{head}.{tail}" if tail in _TAILS else None
