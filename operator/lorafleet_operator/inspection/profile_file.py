"""Engine profiles as files: what `profile -o json` of the command or the sidecar wrote."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError
from lorafleet.profile import EngineProfile, LoraModule

if TYPE_CHECKING:
    from pathlib import Path


class InvalidProfile(LorafleetError):
    """Raised for a file that is no engine profile."""

    reason = "InvalidProfile"
    terminal = True


def read_profile(file: Path) -> EngineProfile:
    """Return the profile in `file`. Raises InvalidProfile naming the file."""
    try:
        profile = EngineProfile.from_json(file.read_text())
    except OSError as error:
        raise InvalidProfile(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InvalidProfile(f"{file} is not an engine profile") from None
    parts: list[EngineProfile | LoraModule] = [profile, *profile.modules]
    for part in parts:
        wrong = _wrong_field(part)
        if wrong:
            raise InvalidProfile(f"{file} is not an engine profile: {wrong}")
    return profile


def profile_text(profile: EngineProfile) -> str:
    """Return the profile for people: its facts, then one line a module."""
    facts = json.loads(profile.to_json())
    modules = facts.pop("modules")
    lines = [f"{name:22} {value}" for name, value in facts.items()]
    lines += [
        f"  {m['name']} ({m['kind']}) {m['in_features']} -> {m['out_features']}" for m in modules
    ]
    return "\n".join(lines)


def _wrong_field(part: EngineProfile | LoraModule) -> str:
    """Return the first field whose value is not of its type, with what was found."""
    types = {"str": str, "int": int, "bool": bool}
    for field in fields(part):
        value = getattr(part, field.name)
        wanted = types.get(str(field.type))
        # `type is`: true is an int too.
        if wanted is not None and type(value) is not wanted:
            return f"{field.name} is {type(value).__name__}, expected {field.type}"
        names = isinstance(value, tuple) and field.name != "modules"
        if names and not all(isinstance(item, str) for item in value):
            return f"{field.name} holds more than names"
    return ""
