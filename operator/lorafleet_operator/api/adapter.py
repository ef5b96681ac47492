"""LoRAAdapter: what people write about an adapter and what the operator reports."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import names, rules
from .fields import BaseModelName, Conditions, Digest, Int32, Int64, Message, PoolReference
from .meta import ApiModel, ObjectMeta
from .rollout import CanaryStatus, Decision, Draining, Revision, RolledBack, Rollout, RolloutStatus
from .routing import AdapterRouting, RoutingStatus
from .rules import validations
from .source import AdapterSource


class PlacementPolicy(StrEnum):
    """How many engines of the pool get the adapter."""

    ALL = "All"
    SPREAD = "Spread"
    BIN_PACK = "BinPack"
    ON_DEMAND = "OnDemand"


class Residency(StrEnum):
    """What engines keep ready of an adapter."""

    GPU = "gpu"  # pinned: a slot and a place in host memory of its own
    HOST = "host"  # a place in host memory of its own
    ON_DEMAND = "onDemand"  # staged, and loaded when a request asks for it
    SHARED = "shared"  # loaded; slots and places are shared, least recently used out first


class Loader(StrEnum):
    """How the engine builds the adapter from the arena."""

    DIRECT = "direct"
    DEVICE = "device"


class DropUnmatched(StrEnum):
    """What of an adapter may be left out because the engine has no module for it."""

    TOWER = "tower"  # the vision or audio tower and its projector


class Tier(StrEnum):
    """Where an engine's copy of an adapter is now."""

    GPU = "gpu"  # in a slot
    HOST = "host"  # registered with the engine, packed
    STAGED = "staged"  # in the arena only
    SOURCE = "source"  # not in this pod


class Placement(ApiModel):
    """Which engines of the pool get the adapter."""

    policy: PlacementPolicy = PlacementPolicy.ALL
    """All: every engine of the pool. Spread: `replicas` engines, apart from each other and with the
    most room. BinPack: `replicas` engines, the fullest that still have room. OnDemand: none, until a
    request asks an engine of the pool for it; there it stays until others need the room, or for
    `idleSeconds`."""
    replicas: Int32 | None = Field(default=None, ge=1, le=1000)
    """Number of engines for policies Spread and BinPack; 1 if left out."""

    idle_seconds: Int32 | None = Field(default=None, ge=1, le=604_800)
    """For policy OnDemand: how long an engine keeps the adapter without a request; 3600 if left
    out."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.REPLICAS_NEED_A_CHOICE, rules.IDLE_NEEDS_ON_DEMAND)
    )

    @model_validator(mode="after")
    def _fits_the_policy(self) -> Self:
        chooses = self.policy in (PlacementPolicy.SPREAD, PlacementPolicy.BIN_PACK)
        if self.replicas is not None and not chooses:
            raise ValueError(rules.REPLICAS_NEED_A_CHOICE.message)
        if self.idle_seconds is not None and self.policy is not PlacementPolicy.ON_DEMAND:
            raise ValueError(rules.IDLE_NEEDS_ON_DEMAND.message)
        return self


class LoRAAdapterSpec(ApiModel):
    """What the adapter is and where it should be served."""

    base_model: BaseModelName
    """Name of the base model that the adapter was trained for, as the engines serve it."""
    pool_ref: PoolReference
    """EnginePool whose engines serve the adapter."""
    served_name: str | None = Field(
        default=None,
        max_length=1024,
        json_schema_extra=validations(
            rules.SERVED_NAME_LENGTH,
            rules.SERVED_NAME_PRINTABLE,
            rules.SERVED_NAME_PATH,
            rules.SERVED_NAME_PINS_NOTHING,
        ),
    )
    """What clients send as `model`, 1 to 253 characters; <namespace>/<name> if left out.
    With @ and 12 or more hex digits of a revision's digest after it, it means that revision alone."""
    source: AdapterSource
    """Where the adapter's files are."""
    placement: Placement = Field(default_factory=Placement, json_schema_extra={"default": {}})
    """Which engines of the pool get the adapter."""
    loader: Loader = Loader.DIRECT
    """How engines build the adapter: direct (from the arena) or device (on the GPU)."""
    pinned: bool = False
    """The older way to say `residency: gpu`."""
    residency: Residency | None = None
    """What engines keep ready of it. gpu: pinned, a GPU slot and a place in host memory of its own,
    never evicted. host: a place in host memory of its own. shared, or left out: loaded, in slots and
    places that the least recently used leave. onDemand: staged; the first request for its name loads it, and it
    is the first to be evicted."""
    priority: Int32 = Field(default=0, ge=-1_000_000, le=1_000_000)
    """More is more important: where there is no room, adapters of lower priority that are not pinned
    give way, the least important first and as few as will do."""
    rollout: Rollout = Field(
        default_factory=Rollout, json_schema_extra={"default": Rollout().to_api()}
    )
    """How engines change from one revision to the next."""
    revision: str | None = Field(default=None, max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")
    """Serve this revision instead of what the source holds: status.digest or one of status.history.
    The source is not read and nothing is sent to engines that have it. Left out: what the source
    holds."""
    revision_history_limit: Int32 = Field(default=2, ge=0, le=20)
    """How many earlier revisions stay staged for a rollback."""
    drain_timeout_seconds: Int32 = Field(default=60, ge=0, le=3600)
    """Seconds that requests running on an old revision get to finish."""
    routing: AdapterRouting = Field(
        default_factory=AdapterRouting, json_schema_extra={"default": {}}
    )
    """Objects that lead requests to the engines that serve the adapter; none by default."""
    allow_base_mismatch: bool = False
    """Whether to load an adapter whose own config names another base model."""
    drop_unmatched: DropUnmatched | None = None
    """tower: leave out what was trained on a multimodal wrapper's tower. Left out: an adapter
    with modules that the engine lacks is refused."""

    model_config = ConfigDict(json_schema_extra=validations(rules.PINNED_IS_GPU))

    @property
    def wanted_residency(self) -> Residency:
        """Return what engines keep ready of it, in whichever way that is said."""
        return Residency.GPU if self.pinned else self.residency or Residency.SHARED

    @model_validator(mode="after")
    def _pinned_is_gpu(self) -> Self:
        if self.pinned and self.residency not in (None, Residency.GPU):
            raise ValueError(rules.PINNED_IS_GPU.message)
        return self

    @field_validator("served_name")
    @classmethod
    def _name_can_be_served(cls, name: str | None) -> str | None:
        problem = None if name is None else names.served_name_problem(name)
        if problem:
            raise ValueError(problem)
        return name


class AdapterEngine(ApiModel):
    """One engine that has, or should have, the adapter."""

    pod_name: str = Field(max_length=253)
    """Name of the engine's pod."""
    engine: str = Field(default="", max_length=128)
    """The engine's instance: changes with every start of its vLLM."""
    digest: Digest = ""
    """Revision that this engine has loaded or is loading."""
    tier: Tier = Tier.SOURCE
    """Where this engine's copy is: gpu, host, staged or source."""
    published: bool = False
    """Whether the served name points at this revision on this engine."""
    canary: bool = False
    """Whether the engine tries the revision of status.canary."""
    guest: bool = False
    """Whether the adapter is there beyond its replicas, for a request asked for it."""
    step: Int64 | None = Field(default=None, ge=0)
    """Trainer's step of the revision that this engine serves; of pushed ones only."""
    in_flight: Int32 = Field(default=0, ge=0)
    """Requests running on the adapter, those on a draining revision included."""
    message: Message = ""
    """What this engine waits for or complained about."""
    last_transition_time: datetime | None = None
    """When digest, tier or published last changed."""


MAX_REFUSALS = 4
MAX_REFUSING_PODS = 10


class EngineRefusal(ApiModel):
    """What some engines said when they refused the adapter's content for good."""

    message: str = Field(max_length=512)
    """What they said: a module, a shape, a dtype or a flag of theirs that does not fit."""
    engines: Int32 = Field(ge=0)
    """How many said so."""
    pods: list[Annotated[str, Field(max_length=253)]] = Field(
        max_length=MAX_REFUSING_PODS, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Names of their pods, the first ten."""


class PushedStep(ApiModel):
    """Which of the trainer's steps a pushed revision is of."""

    revision: str = Field(default="", max_length=71)
    """What the push was called: source.push.revision."""
    fingerprint: str = Field(default="", max_length=512)
    """Identity of the content, as engines name it."""
    step: Int64 = Field(default=0, ge=0)
    """The step it was last pushed with."""


class LoRAAdapterStatus(ApiModel):
    """What the operator has observed; written by it alone."""

    observed_generation: Int64 | None = Field(default=None, ge=0)
    """Generation of the spec that this status is about."""
    digest: Digest = ""
    """Revision that should be served: digest of the canonical content."""
    fingerprint: str = Field(default="", max_length=512)
    """Identity of the source's content when it was last read."""
    resolved_revision: str = Field(default="", max_length=512)
    """What the source calls that content: an ETag, generation, commit, digest or time."""
    served_name: str = Field(default="", max_length=1024)
    """What clients send as `model`; empty while it is another adapter's or may not be had."""
    pool: str = Field(default="", max_length=512)
    """The pool in which the served name is this adapter's, `<namespace>/<name>`."""
    residency: Residency | None = None
    """What engines keep ready of it: gpu, host, shared or onDemand."""
    size_bytes: Int64 | None = Field(default=None, ge=0)
    """Bytes of host memory per engine."""
    rank: Int32 | None = Field(default=None, ge=0)
    """Largest rank of the adapter's modules."""
    desired_engines: Int32 = Field(default=0, ge=0)
    """Number of engines that should serve the adapter."""
    ready_engines: Int32 = Field(default=0, ge=0)
    """Number of those that serve the revision that they should under the served name."""
    updated_engines: Int32 = Field(default=0, ge=0)
    """Number of those that serve the newest revision; fewer than readyEngines during a canary."""
    engines_summary: str = Field(default="", max_length=32)
    """readyEngines/desiredEngines, for people."""
    tier_summary: str = Field(default="", max_length=128)
    """Tiers of the adapter's engines, for people: gpu, or gpu:2 staged:1 when they differ."""
    step_summary: str = Field(default="", max_length=64)
    """Trainer's step that engines serve, for people: 120, or 110-120 when they differ; of pushed ones only."""
    engines: list[AdapterEngine] = Field(
        default_factory=list,
        max_length=names.MAX_STATUS_ENGINES,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """The first hundred of the adapter's engines, those with trouble first."""
    refusals: list[EngineRefusal] = Field(
        default_factory=list,
        max_length=MAX_REFUSALS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Which engines refuse the content, and why: the four most frequent reasons."""
    history: list[Digest] = Field(
        default_factory=list, max_length=21, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Earlier revisions that stay staged, newest first."""
    pushed: list[PushedStep] = Field(
        default_factory=list, max_length=10, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Steps of the pushed revisions that engines may serve, newest first."""
    stable: Revision | None = None
    """The revision that last came to be served everywhere: what a rollback brings back."""
    canary: CanaryStatus | None = None
    """The revision that some engines try; not there while none does."""
    rollout: RolloutStatus | None = None
    """The revision on its way to all engines, with spec.rollout.atomic, that none serves yet."""
    decided: Decision | None = None
    """The revision that all engines come to serve, with spec.rollout.atomic, until they do."""
    rolled_back: RolledBack | None = None
    """The revision that was given up last, while source and spec still ask for it."""
    draining: list[Draining] = Field(
        default_factory=list, max_length=21, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Old revisions on which requests still run."""
    routing: RoutingStatus | None = None
    """The objects that lead requests to the adapter's engines; not there without them."""
    conditions: Conditions = Field(default_factory=list)
    """SourceResolved, Normalized, Placed, Loaded and Ready; AdapterIsIdentity when it is one; Routed with
    spec.routing."""


class LoRAAdapter(ApiModel):
    """A LoRA adapter that engines of a pool serve beside their base model."""

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    """Standard object metadata."""
    spec: LoRAAdapterSpec
    """What the adapter is and where it should be served."""
    status: LoRAAdapterStatus = Field(default_factory=LoRAAdapterStatus)
    """What the operator has observed."""

    model_config = ConfigDict(json_schema_extra=validations(rules.NAME_FITS))

    @property
    def key(self) -> str:
        """Return `<namespace>/<name>`, the adapter's identity in plans, messages and sidecars."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def pool_key(self) -> str:
        """Return the key of the pool that the adapter names, which may not exist."""
        return names.pool_key(self.pool_namespace, self.spec.pool_ref.name)

    @property
    def pool_namespace(self) -> str:
        """Return the namespace of its EnginePool: its own, unless the spec says otherwise."""
        return self.spec.pool_ref.namespace or self.metadata.namespace

    @property
    def holds_name(self) -> bool:
        """Whether the status says that the served name, in the pool, is this adapter's."""
        return (self.status.pool, self.status.served_name) == (self.pool_key, self.served_name)

    @property
    def served_name(self) -> str:
        """Return what clients send as `model`."""
        return self.spec.served_name or names.default_served_name(
            self.metadata.namespace, self.metadata.name
        )
