"""Engine profiles as files: what `profile -o json` of the command or the sidecar wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lorafleet.dtypes import SAFETENSORS_NAMES
from lorafleet.errors import LorafleetError
from lorafleet.profile import EngineProfile
from lorafleet.quoting import shown

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
    except ValueError as error:
        raise InvalidProfile(f"{file} is not an engine profile: {error}") from None
    if profile.dtype and profile.dtype not in SAFETENSORS_NAMES:
        raise InvalidProfile(
            f"{file} is not an engine profile: dtype is {shown(profile.dtype, 40)}, "
            f"expected one of {', '.join(SAFETENSORS_NAMES)}"
        )
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
