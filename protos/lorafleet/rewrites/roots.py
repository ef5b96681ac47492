"""The segments before the layers: `model.`, `language_model.`, both, or none.

Text adapters on multimodal engines, multimodal adapters on text engines, and trainers that
drop a `model.` all differ from the engine only there. The sparse block of Mixtral's kind has two
names as well: `mlp` since transformers 5, `block_sparse_moe` in checkpoints and in vLLM. Only the
engine's own list of modules decides which name is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEGMENTS = ("model.", "language_model.")
_ROOTS = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")
_BLOCKS = (".mlp.", ".block_sparse_moe.")


def core(name: str) -> str:
    """Return the name without its leading root segments."""
    while name.startswith(_SEGMENTS):
        name = name[name.index(".") + 1 :]
    return name


def alternatives(name: str) -> Iterator[str]:
    """Yield the same module under each other root and name of its block."""
    bare = core(name)
    for block, other in (_BLOCKS[:1] * 2, _BLOCKS, _BLOCKS[::-1]):
        if block == other or block in bare:
            for root in _ROOTS:
                found = root + bare.replace(block, other, 1)
                if found != name:
                    yield found


def changes(name: str, other: str) -> Iterator[tuple[str, str]]:
    """Yield (old, new) of the root and of the block, where `name` and `other` differ."""
    bare, other_bare = core(name), core(other)
    root, other_root = name[: len(name) - len(bare)], other[: len(other) - len(other_bare)]
    if root != other_root:
        what = "layers.N" if bare.startswith("layers.") else bare
        yield root + what, other_root + what
    if bare != other_bare:
        yield next(
            (old.strip("."), new.strip("."))
            for old, new in (_BLOCKS, _BLOCKS[::-1])
            if bare.replace(old, new, 1) == other_bare
        )


def described(renamed: dict[tuple[str, str], int]) -> list[str]:
    """Return one line for each (old, new) name."""
    return [f"{old} -> {new} ({count} modules)" for (old, new), count in sorted(renamed.items())]
