"""Trainers push adapters to a fleet: `with Fleet(address) as fleet: fleet.push(model, name=...)`.

Read `fleet` (what a trainer calls), `content` (what can be pushed), `peft_model` (how it comes out of
a model), `tensors` (bytes out of tensors, in bounded memory), `sending` (the protocol), `connection`
(addresses, tokens, tries), `revision` (waiting for engines), `background` (beside the training),
`safe_point` (engines that are recycled when it suits).
Importing this needs neither torch nor PEFT; what is given brings its own.
"""

from lorafleet.push.async_fleet import AsyncFleet, AsyncRevision
from lorafleet.push.background import Pending
from lorafleet.push.failures import NotServed, OperatorUnreachable, Overtaken
from lorafleet.push.fleet import Fleet
from lorafleet.push.revision import Revision
from lorafleet.push.safe_point import RecycledEngine, SafePoint

__all__ = [
    "AsyncFleet",
    "AsyncRevision",
    "Fleet",
    "NotServed",
    "OperatorUnreachable",
    "Overtaken",
    "Pending",
    "RecycledEngine",
    "Revision",
    "SafePoint",
]
