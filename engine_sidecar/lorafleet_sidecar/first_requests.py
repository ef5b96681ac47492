"""Requests for names that the engine lacks: what is brought for them, and what they are told.

The plugin says which names requests wait for (`/v1/wanted`). A name that this pod knows is loaded
here; the operator hears of any other through the inventory, and either places its adapter here or
refuses it. Every look decides anew from what is known now, so nothing is lost in a restart: the
requests wait in the engine, up to their deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from lorafleet.errors import EngineUnreachable, LorafleetError

from lorafleet_sidecar.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from lorafleet.v1alpha1 import sidecar_pb2 as pb

    from lorafleet_sidecar.agent import Agent
    from lorafleet_sidecar.desired import ServedName

log = logging.getLogger(__name__)

ASK_AT_ONCE = 64  # names that the operator is told of at a time
_REMEMBERED = 1024  # refusals
_REFUSED_SECONDS = 3.0  # a refusal answers later requests for so long; then the name may exist
_NOT_FOUND, _UNAVAILABLE = 404, 503


class Step(Enum):
    """What is next for a name that requests wait for."""

    LOAD = auto()
    WAIT = auto()
    ASK = auto()


@dataclass(frozen=True)
class Refusal:
    """What the requests are told; `known`: whether this pod had the name then."""

    status: int
    line: str
    known: bool = False


def next_step(
    served_name: str,
    name: ServedName | None,
    refusal: Refusal | None,
    *,
    loaded: bool,
    operator: bool,
) -> Step | Refusal:
    """Return what to do for requests that wait for `served_name`.

    `name` is what this pod knows of it, `loaded` whether the engine has a revision of it,
    `refusal` what its requests were told a moment ago, `operator` whether one listens.
    """
    if refusal is not None and refusal.known == (name is not None):
        return refusal
    if name is None:
        if operator:
            return Step.ASK
        line = f"The model `{served_name}` is not loaded, and no operator is connected to bring it."
        return Refusal(_NOT_FOUND, line)
    if name.on_demand and not name.removing and not loaded:
        return Step.LOAD
    return Step.WAIT  # a load is in progress, or a restore, or its removal, after which we ask


class FirstRequests:
    """Answers the requests that wait in one engine. Belongs to the event loop's thread."""

    def __init__(self, agent: Agent, refresh_seconds: float) -> None:
        self._agent = agent
        self._control = agent.engine.control
        self._refresh_seconds = refresh_seconds
        self._waiting: list[str] = []  # the longest first
        # Asked for while an operator listened, or found by a sidecar that has just started: these
        # wait for one that comes back.
        self._patient: set[str] | None = None
        self._refused: dict[str, tuple[float, Refusal]] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._changes = Changes()

    async def run(self) -> None:
        """Listen and answer for ever; ends only by cancellation."""
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._forever(self._listen), name="wanted names")
                loops.create_task(self._forever(self._follow), name="inventory")
                loops.create_task(self._forever(self._attend), name="answers")
        finally:
            for task in self._loads.values():
                task.cancel()

    def refuse(self, names: Iterable[pb.RefusedName]) -> None:
        """Take the operator's word that these will not be served here."""
        for each in names:
            status = _UNAVAILABLE if each.exists else _NOT_FOUND
            line = each.message or f"The model `{each.served_name}` does not exist."
            self._remember(each.served_name, Refusal(status, line))
        self._changes.notify()

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except EngineUnreachable:
                self._waiting = []  # whoever waited there is gone with it
            except LorafleetError as error:
                log.debug("first requests: %s", error)
            except Exception:
                # It must outlive its own faults: without it no adapter comes on demand.
                log.exception("first requests failed unexpectedly")
            await asyncio.sleep(self._refresh_seconds)

    async def _listen(self) -> None:
        seen = 0
        while True:
            seen, self._waiting = await self._control.wanted(seen)
            if self._patient is None:
                self._patient = set(self._waiting)
            self._changes.notify()

    async def _follow(self) -> None:
        async for _ in self._agent.board.watch():
            self._changes.notify()

    async def _attend(self) -> None:
        while True:
            seen = self._changes.sequence
            await self._decide()
            await self._changes.wait(seen)

    async def _decide(self) -> None:
        agent, asked = self._agent, []
        patient = (self._patient or set()) & set(self._waiting)
        state = agent.observed.state
        for served_name in list(self._waiting):
            step = next_step(
                served_name,
                agent.desired.names.get(served_name),
                self._refusal(served_name),
                loaded=state is not None and state.has_any(served_name),
                operator=agent.board.watchers > 0 or served_name in patient,
            )
            if isinstance(step, Refusal):
                await self._control.refuse(served_name, step.status, step.line)
            elif step is Step.LOAD:
                self._load(served_name)
            elif step is Step.ASK:
                asked.append(served_name)
        if self._patient is not None:
            self._patient = patient | set(asked)
        requested = tuple(asked[:ASK_AT_ONCE])
        if requested != agent.requested:
            agent.requested = requested
            agent.post()

    def _load(self, served_name: str) -> None:
        """Load once, however many wait; what goes wrong is told to all of them."""
        if served_name not in self._loads:
            task = asyncio.create_task(self._bring(served_name), name=f"load {served_name}")
            self._loads[served_name] = task
            task.add_done_callback(lambda _: self._loads.pop(served_name, None))

    async def _bring(self, served_name: str) -> None:
        try:
            await self._agent.awaken(served_name)
        except EngineUnreachable as error:
            log.info("%s is tried again: %s", served_name, error)  # the requests have time
            await asyncio.sleep(self._refresh_seconds)
        except LorafleetError as error:
            self._remember(served_name, Refusal(_UNAVAILABLE, str(error), known=True))
        except Exception:
            log.exception("%s was not loaded", served_name)
            line = f"The model `{served_name}` could not be loaded; the sidecar's log says why."
            self._remember(served_name, Refusal(_UNAVAILABLE, line, known=True))
        self._changes.notify()

    def _remember(self, served_name: str, refusal: Refusal) -> None:
        self._refused.pop(served_name, None)
        self._refused[served_name] = (time.monotonic() + _REFUSED_SECONDS, refusal)
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]

    def _refusal(self, served_name: str) -> Refusal | None:
        until, refusal = self._refused.get(served_name, (0.0, None))
        return refusal if time.monotonic() < until else None
