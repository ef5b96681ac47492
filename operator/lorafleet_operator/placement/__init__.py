"""Which engine gets which adapter: pure functions of what was observed; no I/O, no clock.

engines   EngineSnapshot and AdapterDemand: everything that planning may look at
policies  the checks that an engine must pass, in order, and what each policy wants
plan      plan(adapters, engines) -> PlacementPlan, with a reason for each engine
"""

from .engines import AdapterDemand, EngineSnapshot
from .plan import PlacementPlan, plan
from .policies import PlacementSettings

__all__ = ["AdapterDemand", "EngineSnapshot", "PlacementPlan", "PlacementSettings", "plan"]
