"""Which engine gets which adapter: pure functions of what was observed; no I/O, no clock.

engines      EngineSnapshot: what planning may know of an engine
demands      AdapterDemand: what planning may know of an adapter
filters      what an engine must be to take an adapter at all
load         what the plan has put on an engine
tenancy      whose adapter it is: quotas, and what engines keep for a tenant
capacity     whether it has room beside what the plan has put there
board        engines and their planned load, found again by room and content
choose       which of those with room is best
preempt      whose place a more important adapter may take
turns        who is served first
entry        one adapter in the plan
books        who is where, and what that adds up to
planner      Planner: the plan of a pool, kept up to date as facts change
plan         plan(): the same from nothing
explanation  for each engine why or why not
"""

from .capacity import name_of
from .demands import AdapterDemand, Policy, Residency
from .engines import EngineSnapshot
from .explanation import (
    EngineLine,
    Explanation,
    Verdict,
    blocked,
    displaced_from,
    explanation,
    lacks_piece,
    over_quota_on,
    unmet,
    wanted,
)
from .plan import PlacementPlan, plan, planned
from .planner import Planner
from .tenancy import Tenancy, TenantRule

__all__ = [
    "AdapterDemand",
    "EngineLine",
    "EngineSnapshot",
    "Explanation",
    "PlacementPlan",
    "Planner",
    "Policy",
    "Residency",
    "Tenancy",
    "TenantRule",
    "Verdict",
    "blocked",
    "displaced_from",
    "explanation",
    "lacks_piece",
    "name_of",
    "over_quota_on",
    "plan",
    "planned",
    "unmet",
    "wanted",
]
