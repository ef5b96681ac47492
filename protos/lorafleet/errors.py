"""The error tree that operator and sidecar share.

LorafleetError
├── AdapterRejected        the adapter itself is wrong: terminal until its source or spec changes
│   ├── InvalidAdapter     malformed file, config or tensor set
│   ├── BaseModelMismatch  trained for another base model
│   ├── RankTooHigh        a rank above the engine's max_lora_rank
│   ├── DigestMismatch     content differs from what was promised
│   └── TooLarge           needs more than a configured limit
├── StagingError           the transfer, not the adapter: worth another try
│   ├── StagingFull        the arena has no room now
│   ├── TransferInterrupted  a stream broke, stalled, or sent what the plan does not hold
│   └── StagingBusy        another stream is staging the same content
├── EngineError
│   ├── EngineUnreachable  the sidecar or vLLM does not answer
│   ├── EngineRejected     vLLM answered and refused
│   └── NameTaken          the served name belongs to another adapter or to the base model
└── SourceError            where the adapter comes from, not what is in it
    ├── SourceNotFound     a file, bucket, claim or address does not exist
    ├── AccessDenied       credentials are missing, incomplete or refused
    ├── SourceUnavailable  the server does not answer, breaks off or answers nonsense
    ├── SourceChanged      the content moved between resolve and read: resolve again
    └── PathNotAllowed     an address, path or link that the bounds forbid: terminal

Each class carries `reason` (the condition reason and the value of the gRPC trailing metadata
key `lorafleet-reason`) and `terminal` (whether a retry without a change can help). The message
is one line that names what was found and what was wanted.

Every reason here is provoked through the running operator and read in `kubectl describe` by
tests/chain/test_operator_describe.py, which fails for one that it does not know. What a person does
with one command alone (`lorafleet inspect`) is refused by subclasses in its own package.
"""

from __future__ import annotations


class LorafleetError(Exception):
    """Base of all expected failures; `str(error)` is one line for people."""

    reason = "InternalError"
    terminal = False


class AdapterRejected(LorafleetError):
    """The adapter itself is wrong; nothing was sent to an engine."""

    reason = "InvalidAdapter"
    terminal = True


class InvalidAdapter(AdapterRejected):
    """Raised for a malformed file, config or set of tensors."""


class BaseModelMismatch(AdapterRejected):
    """Raised when the adapter names another base model than the engine serves."""

    reason = "BaseModelMismatch"


class RankTooHigh(AdapterRejected):
    """Raised when a rank is above the engine's max_lora_rank."""

    reason = "RankTooHigh"


class DigestMismatch(AdapterRejected):
    """Raised when the content's digest is not the promised one."""

    reason = "DigestMismatch"


class TooLarge(AdapterRejected):
    """Raised when the adapter can never fit a configured limit."""

    reason = "TooLarge"


class StagingError(LorafleetError):
    """The transfer failed, not the adapter."""

    reason = "TransferInterrupted"


class StagingFull(StagingError):
    """Raised when the arena has no room now and nothing may be evicted."""

    reason = "StagingFull"


class TransferInterrupted(StagingError):
    """Raised when a stream breaks, stalls or sends what the chunk plan does not hold."""


class StagingBusy(StagingError):
    """Raised when another stream is staging the same content."""

    reason = "StagingBusy"


class EngineError(LorafleetError):
    """The engine, not the adapter or the transfer."""

    reason = "EngineRejected"


class EngineUnreachable(EngineError):
    """Raised when the sidecar or its vLLM does not answer."""

    reason = "EngineUnreachable"


class EngineRejected(EngineError):
    """Raised when vLLM answered and refused; carries its text."""


class NameTaken(EngineError):
    """Raised when a served name belongs to another adapter or to the base model."""

    reason = "NameTaken"


class SourceError(LorafleetError):
    """The place the adapter comes from, not the adapter."""

    reason = "SourceUnavailable"


class SourceNotFound(SourceError):
    """Raised when a file, bucket, claim or address does not exist."""

    reason = "SourceNotFound"


class AccessDenied(SourceError):
    """Raised when credentials are missing, incomplete or refused; never carries them."""

    reason = "AccessDenied"


class SourceUnavailable(SourceError):
    """Raised when the server does not answer, breaks off or answers nonsense."""


class SourceChanged(SourceError):
    """Raised when the content is no longer the resolved one; resolve again."""

    reason = "SourceChanged"


class PathNotAllowed(SourceError):
    """Raised for an address, path or link that the configured bounds forbid."""

    reason = "PathNotAllowed"
    terminal = True


def leaves(root: type[LorafleetError] = LorafleetError) -> list[type[LorafleetError]]:
    """Return `root` and every class of this module below it, in definition order.

    Subclasses elsewhere are their program's own affair and travel as what their parent is.
    """
    found = [root]
    for child in root.__subclasses__():
        if child.__module__ == __name__:
            found.extend(leaves(child))
    return found


_BY_REASON = {cls.reason: cls for cls in reversed(leaves())}


def from_reason(reason: str, message: str) -> LorafleetError:
    """Return the error that travelled as (`reason`, `message`) over gRPC."""
    return _BY_REASON.get(reason, LorafleetError)(message)
