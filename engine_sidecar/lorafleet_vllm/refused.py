"""What the control socket answers when it does not do what it was asked."""

from __future__ import annotations

from lorafleet.errors import LorafleetError


class Refused(LorafleetError):
    """A request that cannot be served now; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.status = status
