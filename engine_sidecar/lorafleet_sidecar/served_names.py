"""What a served name may look like. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter, NameTaken
from lorafleet.pinned_names import parse

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_LENGTH = 253


def check_served_name(name: str, base_models: Collection[str]) -> None:
    """Refuse a name that no client could use, that climbs out of a path, or that a base model has.

    Raises InvalidAdapter or NameTaken.
    """
    why = ""
    if not 1 <= len(name) <= MAX_LENGTH:
        why = f"has {len(name)} characters, expected 1 to {MAX_LENGTH}"
    elif not name.isprintable():
        why = "has characters that cannot be printed"
    elif ".." in name or name.startswith("/"):
        why = "must not contain '..' or start with '/'"
    elif parse(name) is not None:
        why = "must not end in '@' and a digest, which names a revision"
    if why:
        shown = name if len(name) <= 40 else name[:40] + "..."
        raise InvalidAdapter(f"invalid adapter name {shown!r}: {why}")
    if name in base_models:
        raise NameTaken(f"served name {name} conflicts with a served base model")
