"""Names inside the volume, made only from validated parts."""

from __future__ import annotations

import re

STAGING = "staging"
REVISIONS = "revisions"
PLAIN = "plain"
CONFIG = "adapter_config.json"
REVISION = "revision.json"
ORIGIN = "origin"
MODEL = "adapter_model.safetensors"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_STAGING_ID = re.compile(r"[0-9a-f]{32}")


def hex_of(digest: str) -> str:
    """Return the hex part of `sha256:<hex>`. Raises ValueError for any other text."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a digest (sha256:<64 hex digits>)")
    return digest.removeprefix("sha256:")


def is_staging_id(text: str) -> bool:
    """Whether `text` is of the form that this program gives out: 32 hex digits."""
    return _STAGING_ID.fullmatch(text) is not None
