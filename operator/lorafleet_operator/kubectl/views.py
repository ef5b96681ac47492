"""What programs get with `-o json` and `-o yaml`. Fields are only ever added.

docs/kubectl.schema.json is made of these classes by hack/kubectl_schema.py.
"""

from __future__ import annotations

from typing import TypedDict

VERSION = "kubectl.lorafleet.dev/v1"
"""`apiVersion` of every document."""


class Tiers(TypedDict):
    """How many of the engines that the status names have the adapter in which tier."""

    gpu: int
    host: int
    staged: int
    source: int


class AdapterView(TypedDict):
    """One adapter, as its status tells. Texts are "" and numbers null where it tells nothing."""

    namespace: str
    name: str
    pool: str  # <namespace>/<name>
    baseModel: str
    servedName: str
    ready: str  # True, False, Unknown, or "" for one that no operator has looked at
    reason: str
    message: str
    readyEngines: int
    desiredEngines: int
    engines: list[str]  # names of the pods that serve it, at most a hundred
    tier: str
    tiers: Tiers
    residency: str
    step: str  # the trainer's, that engines serve; 110-120 where they differ
    revision: str  # digest of what should be served
    pinnedRevision: str  # spec.revision
    sizeBytes: int | None  # host memory of each engine
    rank: int | None
    inFlight: int  # requests at the time of the status
    created: str  # RFC 3339
    observed: bool  # whether the status is about the present spec
    deleting: bool


class AdapterList(TypedDict):
    """What `ls` gives."""

    apiVersion: str
    kind: str  # AdapterList
    adapters: list[AdapterView]


class EngineView(TypedDict):
    """One engine. Numbers are null where neither a status nor its sidecar tells them."""

    namespace: str
    pod: str
    pool: str  # <namespace>/<name>, "" if no pool could be read
    health: str
    traffic: str
    message: str
    adapters: int | None  # loaded
    slots: int | None
    slotsUsed: int | None
    stagedBytes: int | None
    arenaBytes: int | None
    pinnedBytes: int | None
    loads: int | None  # of a worker, since its vLLM started
    growthPerLoad: int | None  # bytes of its own host memory; null until there were enough
    recycleDue: str  # why it is to be recycled by the pool's rule, "" if it is not
    evictions: int | None
    inFlight: int | None
    live: bool  # whether the sidecar was asked just now; else it is what the status tells


class Top(TypedDict):
    """What `top` gives."""

    apiVersion: str
    kind: str  # Top
    engines: list[EngineView]
    adapters: list[AdapterView]  # the busiest
    totalAdapters: int
    readyAdapters: int
    notes: list[str]  # what was left out, and why


class RevisionView(TypedDict):
    """One revision of an adapter."""

    digest: str
    state: str  # current, trial, earlier, draining or given up
    stable: bool  # what an automatic rollback brings back
    time: str  # RFC 3339: since when engines serve it, try it, or when it was given up; or ""
    askedBy: str  # who last wrote spec.revision or spec.source (a field manager), or ""
    staged: bool | None  # whether it can be served without its source; null: nobody tells
    engines: int  # that serve it
    inFlight: int | None
    message: str


class History(TypedDict):
    """What `history` gives, newest first."""

    apiVersion: str
    kind: str  # History
    adapter: str  # <namespace>/<name>
    pinnedRevision: str  # spec.revision
    source: str  # what the source calls the content that was read last
    revisions: list[RevisionView]


class Rollback(TypedDict):
    """What `rollback` gives when it is over."""

    apiVersion: str
    kind: str  # Rollback
    adapter: str
    before: str  # digest that was wanted before
    revision: str  # digest that is wanted now; "" for what the source holds
    dryRun: bool
    ready: bool | None  # null: it was not waited for
    message: str


class Push(TypedDict):
    """What `push` gives when it is over."""

    apiVersion: str
    kind: str  # Push
    adapter: str  # <namespace>/<name>
    servedName: str  # the model name that engines answer to
    revision: str  # of what was pushed, as spec.source.push.revision names it
    step: int
    sentBytes: int  # of tensors; what the operator had already is not in it
    unchanged: bool  # whether the adapter named the same content before
    ready: bool | None  # null: it was not waited for
    message: str
