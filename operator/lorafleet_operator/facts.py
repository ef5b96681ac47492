"""The facts of one pass over one adapter: gathered step by step, decided on by pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet_operator import rollout
from lorafleet_operator.api.names import ANNOTATION_PAUSED
from lorafleet_operator.traffic import may_answer

if TYPE_CHECKING:
    from lorafleet.errors import LorafleetError

    from lorafleet_operator.api.conditions import Reason
    from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter, RoutingStatus
    from lorafleet_operator.cluster.owned import NotWritten
    from lorafleet_operator.memory import Verdict
    from lorafleet_operator.world import EngineView


@dataclass(frozen=True)
class Placed:
    """Where the plan wants the adapter. `blocked` says why it gets less than it wants."""

    pods: tuple[str, ...] = ()
    wanted: int = 0
    blocked: tuple[Reason, str] | None = None
    lost_name: bool = False
    """Whether an older adapter owns the served name."""
    displaced: frozenset[str] = frozenset()
    """Pods whose engine has the adapter but gave its place to more important ones."""


@dataclass
class Facts:
    """What a pass knows. The steps of reconcile.py fill it from top to bottom."""

    adapter: LoRAAdapter
    created: str
    # observe
    pool: EnginePool | None = None
    engines: list[EngineView] = field(default_factory=list)
    """Of the pool's engines those that have the adapter, had it or should have it, and, until it is
    placed, one of each profile; then others that still have it."""
    # resolve
    fingerprint: str = ""
    """Identity of the wanted content, "" while nobody knows it."""
    origin: str = ""
    """Address and revision, for people."""
    revision: str = ""
    """What the source calls the content."""
    source_error: LorafleetError | None = None
    """Why the source could not be read now."""
    # preflight, by pod UID
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    # plan
    placed: Placed | None = None
    # stage, load, publish, retire: what went wrong, by pod UID
    troubles: dict[str, LorafleetError] = field(default_factory=dict)
    refusals: dict[str, LorafleetError] = field(default_factory=dict)

    # route
    routing: RoutingStatus | None = None
    """What leads requests to the engines, None if nothing is to."""
    routing_problem: NotWritten | None = None

    @property
    def routing_unknown(self) -> bool:
        """Whether the pass could not tell what leads requests to the engines."""
        return self.paused or self.pool is None

    @property
    def key(self) -> str:
        """`<namespace>/<name>` of the adapter."""
        return self.adapter.key

    @property
    def paused(self) -> bool:
        """Whether the adapter's annotation asks to observe and report only."""
        return self.adapter.metadata.annotations.get(ANNOTATION_PAUSED, "").lower() == "true"

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
    def may_act(self) -> bool:
        """Whether the pass may give orders for the wanted revision."""
        return bool(
            self.fingerprint
            and self.placed is not None
            and self.placed.pods
            and self.rejection is None
        )

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
        chosen = self.pool.status.recycling if self.pool is not None else None
        return chosen is not None and chosen.engine == view.instance[-128:]

    def wanted(self) -> rollout.Wanted:
        """Return the facts in the form that the rollout decides on."""
        return rollout.Wanted(
            served_name=self.adapter.served_name,
            loader=str(self.adapter.spec.loader),
            pinned=self.adapter.spec.pinned,
            holdings=tuple(self._holding(view) for view in self.engines),
        )

    def _holding(self, view: EngineView) -> rollout.Holding:
        return rollout.Holding(
            engine=view.uid,
            desired=self.is_desired(view),
            takes_orders=view.takes_orders,
            digest=view.digest_of(self.fingerprint),
            loaded=tuple(
                rollout.Loaded(
                    digest=entry.digest,
                    served_name=entry.served_name,
                    loader=entry.loader,
                    published=entry.published,
                    pinned=entry.pinned,
                    draining=entry.draining,
                )
                for entry in view.loaded(self.key)
            ),
            refused=view.uid in self.refusals,
            leaving=view.leaving,
            displaced=view.pod.name in self.placed.displaced if self.placed else False,
        )
