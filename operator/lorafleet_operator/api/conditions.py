"""What the operator says about a resource: condition types, reasons, and how they are merged.

A failure is a condition with a typed reason, never a phase. `OUTCOMES` is the one table that
turns an error into (condition, reason, terminal); a test holds it against lorafleet/errors.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lorafleet import errors

from .meta import MAX_MESSAGE, Condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime


class ConditionType(StrEnum):
    """What is observed, in the order of the flow.

    True is good, but for Normalized, PartiallyApplied and AdapterIsIdentity, which say something of
    the content. These and Routed have no part in Ready.
    """

    SOURCE_RESOLVED = "SourceResolved"
    """The source was read and its content fits the pool's engines."""
    NORMALIZED = "Normalized"
    """Rewrites were needed to give the canonical form; the message counts and names them."""
    PARTIALLY_APPLIED = "PartiallyApplied"
    """The spec leaves modules out that the engines lack; the message counts and names them."""
    ADAPTER_IS_IDENTITY = "AdapterIsIdentity"
    """Every update is zero: the adapter is served and changes nothing."""
    PLACED = "Placed"
    """Enough engines were found for the adapter."""
    LOADED = "Loaded"
    """Every chosen engine holds the wanted revision."""
    READY = "Ready"
    """Every chosen engine serves the wanted revision under the served name."""

    ROUTED = "Routed"
    """The Services and HTTPRoutes that the spec asks for are as they should be; no part of Ready."""

    ENGINES_READY = "EnginesReady"
    """Pool: every engine takes adapters."""
    PLUGIN_ACTIVE = "PluginActive"
    """Pool: every engine's vLLM runs the plugin."""


ADAPTER_CONDITIONS: Final = (
    ConditionType.SOURCE_RESOLVED,
    ConditionType.PLACED,
    ConditionType.LOADED,
    ConditionType.READY,
)


class Reason(StrEnum):
    """Why, in one word for programs; the message beside it is for people."""

    # SourceResolved
    RESOLVED = "Resolved"
    """The source was read; status.digest names its content."""
    RESOLVING = "Resolving"
    """The source has not been read yet for this spec."""
    SOURCE_NOT_FOUND = "SourceNotFound"
    """The bucket, folder, file or claim does not exist."""
    ACCESS_DENIED = "AccessDenied"
    """Credentials are missing, incomplete or refused."""
    PATH_NOT_ALLOWED = "PathNotAllowed"
    """A path or link leads out of the adapter's own folder or an allowed root."""
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    """The source does not answer or breaks off; tried again."""
    SOURCE_CHANGED = "SourceChanged"
    """The content changed while it was read; read again."""
    INVALID_ADAPTER = "InvalidAdapter"
    """A file, the config or a tensor is wrong, or fits no engine of the pool."""
    BASE_MODEL_MISMATCH = "BaseModelMismatch"
    """The adapter or its spec names another base model than the pool serves."""
    RANK_TOO_HIGH = "RankTooHigh"
    """The adapter's rank is above every engine's max_lora_rank."""
    REVISION_NOT_STAGED = "RevisionNotStaged"
    """An engine lacks an earlier revision that nobody can send it; what is served stays."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The content is not what was promised."""
    TOO_LARGE = "TooLarge"
    """The adapter is larger than a limit, such as every engine's arena."""

    # Normalized
    REWRITTEN = "Rewritten"
    """Rewrites were needed; the message counts and names them."""
    AS_FOUND = "AsFound"
    """The files were canonical already."""

    # PartiallyApplied
    TOWER_DROPPED = "TowerDropped"
    """dropUnmatched left out what only a vision or audio tower could use."""
    APPLIED_WHOLE = "AppliedWhole"
    """The content is another now, or the spec, and nothing is left out any more."""

    # AdapterIsIdentity
    ALL_ZERO = "AllZero"
    """Every lora_B or lora_A is zero, as after a training that stored nothing, or lora_alpha is."""
    HAS_EFFECT = "HasEffect"
    """The content is another now and not an identity any more."""

    # Placed
    PLACED = "Placed"
    """All wanted engines are chosen."""
    POOL_NOT_FOUND = "PoolNotFound"
    """The EnginePool of spec.poolRef does not exist."""
    NO_MATCHING_ENGINES = "NoMatchingEngines"
    """No engine of the pool can take the adapter; the message says why for each."""
    NO_CAPACITY = "NoCapacity"
    """Fewer engines than wanted have room; those that have are used."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The tenant's quota in the pool is used up; the message has the numbers."""
    NOT_GRANTED = "NotGranted"
    """The pool or the served name is another namespace's, which holds no AdapterGrant for it."""
    PREEMPTED = "Preempted"
    """Adapters of higher priority, or guaranteed ones, took its place, and no other engine has room."""

    # Loaded
    LOADED = "Loaded"
    """Every chosen engine holds the wanted revision."""
    STAGING = "Staging"
    """Tensors are on their way to the engines."""
    LOADING = "Loading"
    """Engines are loading the staged revision."""
    STAGING_FULL = "StagingFull"
    """An engine's arena has no room now and nothing in it may be evicted."""
    STAGING_BUSY = "StagingBusy"
    """Another stream is sending the same content to an engine; tried again."""
    TRANSFER_INTERRUPTED = "TransferInterrupted"
    """A transfer broke; it resumes where it stopped."""
    ENGINE_UNREACHABLE = "EngineUnreachable"
    """A sidecar or its vLLM does not answer."""
    ENGINE_REJECTED = "EngineRejected"
    """vLLM refused; the message carries its text."""
    PLUGIN_INACTIVE = "PluginInactive"
    """What the spec asks for needs the plugin, which is not live in an engine."""
    NAME_TAKEN = "NameTaken"
    """The served name belongs to another adapter or to the base model."""
    LOAD_RATE_LIMITED = "LoadRateLimited"
    """The tenant's loads of this minute are used up; the next one is due soon."""
    ROLLED_BACK = "RolledBack"
    """The newest revision was given up until spec or content change; the one before is served."""
    INTERNAL_ERROR = "InternalError"
    """A fault of the operator or the sidecar; its log says more."""

    # Ready
    READY = "Ready"
    """All is as the spec wants it."""
    CANARY = "Canary"
    """Some engines try the newest revision, the others serve the one before it."""
    WAITING = "Waiting"
    """An earlier condition has to become True first."""
    PAUSED = "Paused"
    """The annotation lorafleet.dev/paused keeps the operator from acting."""

    # Routed
    ROUTED = "Routed"
    """Requests find the engines."""
    ROUTE_REFUSED = "RouteRefused"
    """The API server refuses a Service, EndpointSlice or HTTPRoute; the message carries its text."""
    ROUTE_NAME_TAKEN = "RouteNameTaken"
    """An object of that name is somebody else's; it is left alone."""
    GATEWAY_API_MISSING = "GatewayApiMissing"
    """The cluster has no HTTPRoute of gateway.networking.k8s.io/v1."""

    # status.rolledBack alone
    ERROR_RATE = "ErrorRate"
    """Too many of the newest revision's requests failed while some engines tried it."""

    # Pools
    ENGINES_READY = "EnginesReady"
    """Every engine of the pool takes adapters."""
    ENGINES_STARTING = "EnginesStarting"
    """An engine's vLLM does not answer yet."""
    SIDECAR_MISSING = "SidecarMissing"
    """A pod of the pool has no sidecar: it was labelled after it was made, or nothing injects one."""
    ENGINE_REFUSED = "EngineRefused"
    """An engine cannot take adapters, for example without --enable-lora."""
    PLUGIN_ACTIVE = "PluginActive"
    """Every engine runs the plugin."""


@dataclass(frozen=True)
class Outcome:
    """What an error means for its adapter.

    `terminal`: only a change of the source or the spec can help, so nothing is retried.
    """

    condition: ConditionType
    reason: Reason
    terminal: bool


OUTCOMES: Final[dict[type[errors.LorafleetError], Outcome]] = {
    errors.LorafleetError: Outcome(ConditionType.LOADED, Reason.INTERNAL_ERROR, False),
    errors.AdapterRejected: Outcome(ConditionType.SOURCE_RESOLVED, Reason.INVALID_ADAPTER, True),
    errors.InvalidAdapter: Outcome(ConditionType.SOURCE_RESOLVED, Reason.INVALID_ADAPTER, True),
    errors.BaseModelMismatch: Outcome(
        ConditionType.SOURCE_RESOLVED, Reason.BASE_MODEL_MISMATCH, True
    ),
    errors.RankTooHigh: Outcome(ConditionType.SOURCE_RESOLVED, Reason.RANK_TOO_HIGH, True),
    errors.DigestMismatch: Outcome(ConditionType.SOURCE_RESOLVED, Reason.DIGEST_MISMATCH, True),
    errors.TooLarge: Outcome(ConditionType.SOURCE_RESOLVED, Reason.TOO_LARGE, True),
    errors.StagingError: Outcome(ConditionType.LOADED, Reason.TRANSFER_INTERRUPTED, False),
    errors.StagingFull: Outcome(ConditionType.LOADED, Reason.STAGING_FULL, False),
    errors.TransferInterrupted: Outcome(ConditionType.LOADED, Reason.TRANSFER_INTERRUPTED, False),
    errors.StagingBusy: Outcome(ConditionType.LOADED, Reason.STAGING_BUSY, False),
    errors.EngineError: Outcome(ConditionType.LOADED, Reason.ENGINE_REJECTED, False),
    errors.EngineUnreachable: Outcome(ConditionType.LOADED, Reason.ENGINE_UNREACHABLE, False),
    errors.EngineRejected: Outcome(ConditionType.LOADED, Reason.ENGINE_REJECTED, False),
    errors.NameTaken: Outcome(ConditionType.LOADED, Reason.NAME_TAKEN, False),
    errors.SourceError: Outcome(ConditionType.SOURCE_RESOLVED, Reason.SOURCE_UNAVAILABLE, False),
    errors.SourceNotFound: Outcome(ConditionType.SOURCE_RESOLVED, Reason.SOURCE_NOT_FOUND, False),
    errors.AccessDenied: Outcome(ConditionType.SOURCE_RESOLVED, Reason.ACCESS_DENIED, False),
    errors.SourceUnavailable: Outcome(
        ConditionType.SOURCE_RESOLVED, Reason.SOURCE_UNAVAILABLE, False
    ),
    errors.SourceChanged: Outcome(ConditionType.SOURCE_RESOLVED, Reason.SOURCE_CHANGED, False),
    errors.PathNotAllowed: Outcome(ConditionType.SOURCE_RESOLVED, Reason.PATH_NOT_ALLOWED, True),
}


def outcome_of(error: errors.LorafleetError) -> Outcome:
    """Return what `error` means; a class without an entry means what its nearest parent does."""
    return next(OUTCOMES[cls] for cls in type(error).__mro__ if cls in OUTCOMES)


def condition(
    type_: ConditionType,
    status: bool | None,
    reason: Reason,
    message: str,
    *,
    generation: int | None,
    now: datetime,
) -> Condition:
    """Return one observation; `status` None is Unknown, `now` an aware time, kept to the second.

    The message becomes one line, cut to what the API stores.
    """
    return Condition(
        type=type_,
        status="Unknown" if status is None else "True" if status else "False",
        observed_generation=generation,
        last_transition_time=now.replace(microsecond=0),
        reason=reason,
        message=" ".join(message.split())[:MAX_MESSAGE],
    )


def merge_conditions(
    existing: Sequence[Condition], observed: Iterable[Condition]
) -> list[Condition]:
    """Return `existing` with `observed` in place of conditions of the same type.

    An unchanged status keeps its lastTransitionTime, whatever else changed; types that were not
    observed stay as they are. Sorted in the order of ConditionType, unknown types last by name.
    """
    merged = {condition.type: condition for condition in existing}
    for new in observed:
        old = merged.get(new.type)
        if old is not None and old.status == new.status:
            kept = {"last_transition_time": old.last_transition_time}
            merged[new.type] = new.model_copy(update=kept)
        else:
            merged[new.type] = new
    rank = {type_.value: position for position, type_ in enumerate(ConditionType)}
    return sorted(merged.values(), key=lambda c: (rank.get(c.type, len(rank)), c.type))


def ready_condition(
    observed: Iterable[Condition], *, generation: int | None, now: datetime
) -> Condition:
    """Return `Ready`: True, or the reason and message of the condition that stands in the way.

    That is the first one that is False, else the first that is not known: what is wrong says more
    than what waits for it. `observed` holds SourceResolved, Placed and Loaded; one that is missing
    counts as Unknown.
    """
    by_type = {entry.type: entry for entry in observed}
    ordered = [
        by_type.get(type_)
        or condition(
            type_,
            None,
            Reason.WAITING,
            f"{type_} is not known yet",
            generation=generation,
            now=now,
        )
        for type_ in ADAPTER_CONDITIONS[:-1]
    ]
    lacking = [entry for entry in ordered if entry.status != "True"]
    if lacking:
        blamed = next((entry for entry in lacking if entry.status == "False"), lacking[0])
        return blamed.model_copy(
            update={
                "type": ConditionType.READY.value,
                "observed_generation": generation,
                "last_transition_time": now.replace(microsecond=0),
            }
        )
    text = "all engines serve the wanted revision"
    return condition(ConditionType.READY, True, Reason.READY, text, generation=generation, now=now)
