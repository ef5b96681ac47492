"""Whether an adapter was trained for the engine's base model; only names can tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorafleet.profile import EngineProfile

_PATH = re.compile(r"/|\.{1,2}(/|$)|~|[A-Za-z]:/|file:")


def base_differs(found: str, profile: EngineProfile) -> bool:
    """Return whether `found` names another base model than all names of the engine.

    Only the last path part counts, without case; an empty name differs from nothing.
    """
    names = [profile.base_model, *profile.base_model_aliases]
    return bool(found) and any(names) and _last_part(found) not in map(_last_part, names)


def _last_part(name: str) -> str:
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    for part in parts:  # a Hugging Face cache path: models--org--name/snapshots/<commit>
        if part.startswith("models--"):
            return part.rpartition("--")[2].casefold()
    return parts[-1].casefold() if parts else ""


def only_local(found: str, profile: EngineProfile) -> bool:
    """Return whether one side is only a path on some disk, so that a difference says little."""
    names = [name for name in (profile.base_model, *profile.base_model_aliases) if name]
    return _is_path(found) or all(map(_is_path, names))


def _is_path(name: str) -> bool:
    return bool(_PATH.match(name)) or "\\" in name
