"""How a new revision goes out: what people write, and what the operator says while it does."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import rules
from .fields import Digest, Int32, Int64, Message
from .meta import ApiModel
from .rules import Rule, validations

_PERCENT: Final = re.compile(r"(100|[1-9]?[0-9])%")
_RATE: Final = re.compile(r"(100|[1-9]?[0-9](\.[0-9]{1,3})?)%?")


def _share(rule: Rule, default: int | str | None) -> Any:
    """Return a field for a number of engines or a percentage of them."""
    return Field(
        default=default,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 4,
            **validations(rule),
        },
    )


def percent_of(share: int | str, engines: int, *, up: bool) -> int:
    """Return a number or percentage of `engines` as a number, a fraction rounded up or down."""
    if isinstance(share, int):
        return share
    parts = int(share.removesuffix("%")) * engines
    return -(-parts // 100) if up else parts // 100


class Probe(ApiModel):
    """A question that an engine has to answer with a new revision before clients are given it."""

    prompt: str = Field(default="Hello", min_length=1, max_length=1024)
    """Prompt of a completion with temperature 0."""
    expect: str | None = Field(default=None, min_length=1, max_length=256)
    """What the completion has to hold; any completion will do if left out."""
    max_tokens: Int32 = Field(default=1, ge=1, le=256)
    """Longest completion in tokens."""


class Canary(ApiModel):
    """A trial: some engines serve a new revision before the others get it."""

    engines: int | str | None = _share(rules.SHARE_OF_AT_LEAST_ONE, None)
    """How many engines serve the new revision at first: a number or a percentage, rounded up, of the
    adapter's engines. Left out: trafficPercent of the engines, or one."""
    traffic_percent: Int32 | None = Field(default=None, ge=1, le=100)
    """Share of the requests that the new revision gets meanwhile, where the adapter has an
    HTTPRoute; elsewhere the share of engines decides."""
    hold_seconds: Int32 = Field(default=60, ge=0, le=86_400)
    """Seconds for which the new revision is watched before the other engines get it."""
    max_error_rate: int | str = Field(
        default="5%",
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 8,
            **validations(rules.ERROR_RATE),
        },
    )
    """Most of the adapter's requests on these engines that may fail (status 500 and above), in
    percent: 5%, 0.5% or 5. Above it the old revision comes back everywhere."""
    probe: Probe | None = None
    """A question that each engine asks itself before it serves the new revision; none if left out."""

    @field_validator("engines")
    @classmethod
    def _is_share(cls, share: int | str | None) -> int | str | None:
        if share is not None and (not is_share(share) or share in (0, "0%")):
            raise ValueError(rules.SHARE_OF_AT_LEAST_ONE.message)
        return share

    @field_validator("max_error_rate")
    @classmethod
    def _is_rate(cls, rate: int | str) -> int | str:
        if _RATE.fullmatch(str(rate)) is None:
            raise ValueError(rules.ERROR_RATE.message)
        return rate

    @property
    def error_rate(self) -> Decimal:
        """Return maxErrorRate as a fraction, exactly."""
        return Decimal(str(self.max_error_rate).removesuffix("%")) / 100

    def engines_of(self, engines: int) -> int:
        """Return how many of `engines` are on trial: at least one, if there is any."""
        share = self.engines
        if share is None:
            share = 1 if self.traffic_percent is None else f"{self.traffic_percent}%"
        return min(engines, max(1, percent_of(share, engines, up=True)))


def is_share(share: int | str) -> bool:
    """Return whether `share` is a number of engines or a percentage."""
    if isinstance(share, int):
        return 0 <= share <= 1_000_000
    return _PERCENT.fullmatch(share) is not None


class Rollout(ApiModel):
    """How the adapter's engines change from one revision to the next."""

    max_unavailable: int | str = _share(rules.SHARE, 0)
    """How many of the adapter's engines may be without any revision of it during an update: a number,
    or a percentage rounded down. More than 0 lets an engine without room for two revisions unload
    the old one first."""
    max_surge: int | str = _share(rules.SHARE, "100%")
    """How many engines may hold the old and the new revision at once: a number, or a percentage
    rounded up. All by default: no name moves before every engine has loaded the new revision. With
    0 each engine unloads the old one first."""
    canary: Canary | None = None
    """Lets some engines try a new revision first; none if left out."""
    atomic: bool = False
    """Publishes a revision on all of the adapter's engines or on none: every engine loads and proves
    it first, and while one does not answer or refuses, no name moves. Once status.decided names it,
    every engine comes to serve it, whatever happens meanwhile. Not with canary, nor
    with other limits than maxSurge 100% and maxUnavailable 0."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.ROLLOUT_CAN_MOVE, rules.ATOMIC_ALONE)
    )

    @field_validator("max_unavailable", "max_surge")
    @classmethod
    def _is_share(cls, share: int | str) -> int | str:
        if not is_share(share):
            raise ValueError(rules.SHARE.message)
        return share

    @model_validator(mode="after")
    def _can_move(self) -> Self:
        if self.max_unavailable in (0, "0%") and self.max_surge in (0, "0%"):
            raise ValueError(rules.ROLLOUT_CAN_MOVE.message)
        return self

    @model_validator(mode="after")
    def _atomic_alone(self) -> Self:
        usual = self.max_surge == "100%" and self.max_unavailable in (0, "0%")
        if self.atomic and (self.canary is not None or not usual):
            raise ValueError(rules.ATOMIC_ALONE.message)
        return self

    def limits(self, engines: int) -> tuple[int, int]:
        """Return (most engines unavailable, most engines with two revisions) of `engines`.

        As for a Deployment: where rounding leaves neither, one engine may be unavailable.
        """
        unavailable = min(engines, percent_of(self.max_unavailable, engines, up=False))
        surge = min(engines, percent_of(self.max_surge, engines, up=True))
        return (1, 0) if not unavailable and not surge else (unavailable, surge)


class Revision(ApiModel):
    """One content of the adapter."""

    digest: Digest = ""
    """Digest of the canonical content, as most engines know it."""
    fingerprint: str = Field(default="", max_length=512)
    """Identity of the content at its source."""


class CanaryStatus(Revision):
    """A revision on trial. There while engines serve it beside the one that went before."""

    since: datetime | None = None
    """When every engine on trial had come to serve it: holdSeconds count from here."""
    engines: Int32 = Field(default=0, ge=0)
    """Engines that serve it, or are about to: those with `canary` in status.engines. The adapter's
    others serve status.stable."""
    traffic_percent: Int32 | None = Field(default=None, ge=0, le=100)
    """Share of the requests that the engines on trial should get, as an HTTPRoute's weight."""
    requests: Int64 = Field(default=0, ge=0)
    """Requests that the engines on trial have finished with it, failed ones included."""
    errors: Int64 = Field(default=0, ge=0)
    """Requests of these that failed."""
    promoted: bool = False
    """Whether the trial is over and the other engines follow."""


MAX_NAMED: Final = 10


class RolloutStatus(Revision):
    """A revision on its way to all engines at once (spec.rollout.atomic)."""

    engines: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=MAX_NAMED,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Pods of the engines that have loaded and proved it, the first ten by name."""
    engine_count: Int32 = Field(default=0, ge=0)
    """How many have."""
    waiting_for: str = Field(default="", max_length=253)
    """Pod of an engine that does not answer, and that is waited for."""


class Decision(RolloutStatus):
    """A revision that every engine comes to serve, for all had loaded it: there is no way back."""

    # A field of its own in the status: written by who has not heard of the decision yet, a revision
    # that is only on its way must not be taken for the decided one.
    time: datetime | None = None
    """When that was decided; no engine served it before."""


class RolledBack(Revision):
    """A revision that was given up. Not tried again before the spec or the content changes."""

    generation: Int64 = Field(default=0, ge=0)
    """Generation of the spec under which it was given up."""
    reason: str = Field(default="", max_length=64)
    """Why, in one word: ErrorRate, EngineRejected or what else an engine refused it for."""
    message: Message = ""
    """Why, for people."""
    time: datetime | None = None
    """When."""


class Draining(ApiModel):
    """An old revision on which requests still run."""

    digest: Digest = ""
    """The revision."""
    engines: Int32 = Field(default=0, ge=0)
    """Engines that still have it loaded."""
    in_flight: Int32 = Field(default=0, ge=0)
    """Requests that run on it, on all engines together."""
