"""The segments before the layers: `model.`, `language_model.`, both, or none.

Text adapters on multimodal engines, multimodal adapters on text engines, and trainers that
drop a `model.` all differ from the engine only there. Only the engine's own list of modules
decides which name is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEGMENTS = ("model.", "language_model.")
_ROOTS = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")


def core(name: str) -> str:
    """Return the name without its leading root segments."""
    while name.startswith(_SEGMENTS):
        name = name[name.index(".") + 1 :]
    return name


def alternatives(name: str) -> Iterator[str]:
    """Yield the same module under each other root."""
    bare = core(name)
    for root in _ROOTS:
        if root + bare != name:
            yield root + bare


def described(renamed: dict[tuple[str, str], int]) -> list[str]:
    """Return one line for each change of root; keys are (old root, new root)."""
    return [
        f"{old}layers.N -> {new}layers.N ({count} modules)"
        for (old, new), count in sorted(renamed.items())
    ]
