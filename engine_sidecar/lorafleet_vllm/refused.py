"""What the control socket answers when it does not do what it was asked."""

from __future__ import annotations

import re

from lorafleet.errors import LorafleetError


class Refused(LorafleetError):
    """A request that cannot be served now; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.status = status


def reason_of(error: Exception) -> str:
    """Return the worker's one line out of what vLLM wraps around it."""
    line = " ".join(str(error).split())
    line = re.sub(r"^Call to \w+ method failed: ", "", line)
    return line or f"vLLM refused the adapter with {type(error).__name__} (no text)"
