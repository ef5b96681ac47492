"""The facts of one pass over one adapter: gathered step by step, decided on by pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lorafleet_operator import clock, revisions, rollout
from lorafleet_operator.api.names import ANNOTATION_PAUSED
from lorafleet_operator.api.v1alpha1 import PlacementPolicy, Residency
from lorafleet_operator.course import chart
from lorafleet_operator.traffic import may_answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lorafleet.errors import LorafleetError

    from lorafleet_operator.api.conditions import Reason
    from lorafleet_operator.api.v1alpha1 import (
        Decision,
        EnginePool,
        LoRAAdapter,
        LoRAAdapterSpec,
        Revision,
        RolledBack,
        RoutingStatus,
    )
    from lorafleet_operator.cluster.owned import NotWritten
    from lorafleet_operator.course import Course
    from lorafleet_operator.memory import Verdict
    from lorafleet_operator.world import EngineView


GPU: Final = str(Residency.GPU)


def residency_order(spec: LoRAAdapterSpec) -> str:
    """Return what sidecars are told of the adapter's residency: nothing, if it is shared."""
    wanted = spec.wanted_residency
    return "" if wanted is Residency.SHARED else str(wanted)


@dataclass(frozen=True)
class Placed:
    """Where the plan wants the adapter. `blocked` says why it gets less than it wants."""

    pods: tuple[str, ...] = ()
    wanted: int = 0
    blocked: tuple[Reason, str] | None = None
    lost_name: bool = False
    """Whether the served name is not its own: another adapter owns it, or pool or name are another
    namespace's and not granted."""
    kept_names: frozenset[str] = frozenset()
    """Names of before, which nobody else claims: while it waits for the new one they stay."""
    gone_names: frozenset[str] = frozenset()
    """Names under which engines still serve it, and which are another adapter's by now."""
    sheltered: frozenset[str] = frozenset()
    """Pods whose engine keeps it in a slot, by its tenant's guarantee."""
    displaced: frozenset[str] = frozenset()
    """Pods whose engine has the adapter but gave its place to more important ones."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pods whose engine refuses the content for good, or too often, with what it said."""
    guests: frozenset[str] = frozenset()
    """Of `pods`, those beyond the replicas, where requests have asked for it."""


@dataclass
class Facts:
    """What a pass knows. The steps of reconcile.py fill it from top to bottom."""

    adapter: LoRAAdapter
    created: str
    # observe
    forbidden: tuple[Reason, str] | None = None
    """Why it may not be served by its pool, or under its name."""
    pool: EnginePool | None = None
    engines: list[EngineView] = field(default_factory=list)
    """Of the pool's engines those that have the adapter, had it or should have it, and, until it is
    placed, one of each profile; then others that still have it."""
    awaited: frozenset[str] = frozenset()
    """UIDs of engines that had the adapter by its status, and that have taken no order of this
    operator's yet: where all change at once they are waited for, for as long as the pool's grace."""
    # resolve
    fingerprint: str = ""
    """Identity of the newest wanted content, "" while nobody knows it."""
    origin: str = ""
    """Address and revision, for people."""
    revision: str = ""
    """What the source calls the content."""
    pushed_content: str = ""
    """Identity of the pushed content that the spec names, whether it is wanted now or not."""
    source_error: LorafleetError | None = None
    """Why the source could not be read now."""
    unread: bool = False
    """Whether the source has yet to answer: what is known of it is of an earlier look."""
    not_staged: str = ""
    """Why the revision that the spec names cannot be served."""
    # preflight, by pod UID
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    # plan
    placed: Placed | None = None
    held_back: str = ""
    """Why nothing may be loaded now, for its tenant has loaded much."""
    # stage, load, publish, retire: what went wrong, by pod UID
    troubles: dict[str, LorafleetError] = field(default_factory=dict)
    refusals: dict[str, LorafleetError] = field(default_factory=dict)
    failures: dict[str, tuple[int, LorafleetError]] = field(default_factory=dict)
    """How often an engine has refused the newest content in a way that may pass, and the last text."""
    given_up: RolledBack | None = None
    """Why the pass has given the newest content up; what it was judged by may be gone by now."""
    unable: set[str] = field(default_factory=set)
    """Engines that cannot take the stable revision, or the one that was decided on, as far as they
    have been asked."""
    decided: Decision | None = None
    """The revision that the pass has decided on for all engines."""
    full: dict[str, LorafleetError] = field(default_factory=dict)
    """Engines without room for two revisions, of which some may be without any."""

    # route
    routing: RoutingStatus | None = None
    """What leads requests to the engines, None if nothing is to."""
    routing_problem: NotWritten | None = None

    @property
    def routing_unknown(self) -> bool:
        """Whether the pass could not tell what leads requests to the engines."""
        return self.paused or (self.pool is None and self.forbidden is None)

    @property
    def key(self) -> str:
        """`<namespace>/<name>` of the adapter."""
        return self.adapter.key

    @property
    def paused(self) -> bool:
        """Whether the adapter's annotation asks to observe and report only.

        It cannot keep what another namespace has taken back.
        """
        asked = self.adapter.metadata.annotations.get(ANNOTATION_PAUSED, "").lower() == "true"
        return asked and self.forbidden is None

    @property
    def pinned(self) -> bool:
        """Whether the spec names a revision: the source has no say."""
        return self.adapter.spec.revision is not None

    @property
    def rejection(self) -> LorafleetError | None:
        """Why the content is wrong for every engine that could say so, None if it is not."""
        if self.source_error is not None and self.source_error.terminal:
            return self.source_error
        errors = [verdict.error for verdict in self.verdicts.values()]
        if errors and all(errors):
            return errors[0]
        return None

    @property
    def may_read(self) -> bool:
        """Whether engines may be sent what the source holds."""
        return not self.pinned and not self.unread and self.source_error is None

    @property
    def out_of_reach(self) -> bool:
        """Whether the content can be had from nobody now: its source cannot be read, and no engine
        that has it passes it on."""
        return self.source_error is not None and not any(
            view.inventory is not None
            and view.inventory.forwards
            and view.digest_of(self.fingerprint)
            for view in self.engines
        )

    @property
    def may_act(self) -> bool:
        """Whether the pass may give orders for the wanted revision.

        What was decided for all engines, and what they served before, is so whatever has come of the
        source.
        """
        if self.placed is None or not self.placed.pods or self.held_back:
            return False
        if self.adapter.spec.rollout.atomic or self.decided or self.adapter.status.decided:
            course = self.course()
            if course.decided or (course.main != course.newest and course.given_up is None):
                return True
        return bool(self.fingerprint) and self.rejection is None

    @property
    def rank(self) -> int | None:
        """Largest rank of the content, None while unknown."""
        ranks = [verdict.rank for verdict in self.verdicts.values() if verdict.error is None]
        return max(ranks, default=None)

    @property
    def size_bytes(self) -> int | None:
        """Arena bytes per engine, None while unknown."""
        sizes = [verdict.size_bytes for verdict in self.verdicts.values() if verdict.error is None]
        return max(sizes, default=None)

    def view(self, uid: str) -> EngineView:
        """Return the engine of the pod with that UID."""
        return next(view for view in self.engines if view.uid == uid)

    @property
    def sleeps(self) -> bool:
        """Whether it is on no engine because no request has asked for it."""
        on_demand = self.adapter.spec.placement.policy is PlacementPolicy.ON_DEMAND
        placed = self.placed
        return on_demand and placed is not None and not placed.pods and placed.blocked is None

    @property
    def guest_residency(self) -> str:
        """What engines beyond the replicas are told, and by what they are known again."""
        usual = residency_order(self.adapter.spec)
        return "" if usual == Residency.ON_DEMAND else str(Residency.ON_DEMAND)

    def residency_on(self, view: EngineView) -> str:
        """Return what the sidecar of an engine is told of the adapter's residency."""
        if self.placed is not None and view.pod.name in self.placed.sheltered:
            return GPU
        guest = self.placed is not None and view.pod.name in self.placed.guests
        return self.guest_residency if guest else residency_order(self.adapter.spec)

    def is_desired(self, view: EngineView) -> bool:
        """Return whether the plan wants the adapter on this engine."""
        return self.placed is not None and view.member and view.pod.name in self.placed.pods

    def may_answer(self, view: EngineView) -> bool:
        """Return whether requests for the adapter may be sent to this engine now."""
        return may_answer(
            serves=view.serves(self.key),
            deleting=view.pod.terminating,
            draining=view.draining,
            recycling=self._recycling(view),
            elsewhere=any(
                other.serves(self.key) and not other.leaving and not self._recycling(other)
                for other in self.engines
                if other is not view
            ),
        )

    def _recycling(self, view: EngineView) -> bool:
        return view.is_recycled(self.pool.status.recycling if self.pool is not None else None)

    def course(self, now: datetime | None = None) -> Course:
        """Return what each engine should come to serve, by what the pass knows so far."""
        return chart(self, now or clock.now())

    def wanted(self, course: Course | None = None) -> rollout.Wanted:
        """Return the facts in the form that the rollout decides on."""
        course = course or self.course()
        unavailable, surge = self._limits()
        keep = revisions.earlier(self, course)
        return rollout.Wanted(
            served_name=self.adapter.served_name,
            loader=str(self.adapter.spec.loader),
            holdings=tuple(self._holding(view, course, keep) for view in self.engines),
            max_unavailable=unavailable,
            max_surge=surge,
            decided=course.decided,
        )

    def may_make_room(self, view: EngineView) -> bool:
        """Return whether the engine may unload what it serves for the newest content, and gains by it."""
        served = [entry for entry in view.loaded(self.key) if entry.published]
        return (
            self._limits()[0] > 0
            and bool(served)
            and self._fits(view, {entry.digest for entry in view.loaded(self.key)})
        )

    def _limits(self) -> tuple[int, int]:
        desired = sum(self.is_desired(view) for view in self.engines)
        return self.adapter.spec.rollout.limits(desired)

    def _holding(self, view: EngineView, course: Course, keep: list[Revision]) -> rollout.Holding:
        content = course.content_for(view.uid)
        digest = view.digest_of(content)
        entries = view.loaded(self.key)
        to_keep = revisions.to_keep(view, keep, digest)
        return rollout.Holding(
            engine=view.uid,
            desired=self.is_desired(view),
            residency=self.residency_on(view),
            takes_orders=view.takes_orders,
            digest=digest,
            loaded=tuple(
                rollout.Loaded(
                    digest=entry.digest,
                    served_name=entry.served_name,
                    loader=entry.loader,
                    published=entry.published,
                    residency=entry.residency or (GPU if entry.pinned else ""),
                    draining=entry.draining,
                    unproved=entry.unproved,
                )
                for entry in entries
            ),
            refused=view.uid in self.refusals and content == self.fingerprint,
            leaving=view.leaving,
            displaced=view.pod.name in self.placed.displaced if self.placed else False,
            proved=content != course.newest,
            full=view.uid in self.full,
            fits=bool(digest) or self._fits(view, {entry.digest for entry in entries}),
            keeps_others=revisions.kept(view, self.key, to_keep) != to_keep,
        )

    def _fits(self, view: EngineView, own: set[str]) -> bool:
        """Return whether the arena has room for the content once the adapter's own copies may go."""
        if view.inventory is None or self.size_bytes is None:
            return False
        arena = view.inventory.arena
        freed = sum(each.size_bytes for each in view.inventory.staged if each.digest in own)
        return arena.in_use_bytes + arena.reserved_bytes - freed + self.size_bytes <= (
            arena.limit_bytes
        )
