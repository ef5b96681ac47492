"""Several engines that serve one adapter, and what becomes of it when its content changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fake_engine import Behaviour
from lorafleet_operator.deletion import let_go
from lorafleet_operator.reconcile import reconcile
from operator_rig import Operator, operator, ready
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.report import Report

OLD, NEW, NEXT = "d01-plain-bf16", "d02-all-fp32", "d09-rank-6"
EXTENT = 2 << 20
ATOMIC: dict[str, Any] = {"atomic": True}


class Scene(Operator):
    """Three engines by default that serve an adapter, and what its next content will be called."""

    rigs: list[Rig]
    old = ""
    new = ""

    async def begin(self, **spec: Any) -> LoRAAdapter:
        """Let the adapter be served, after another one has told the digest of the next content."""
        first = await self.apply(self.adapter("probe", NEW))
        self.new = first.status.digest
        assert not await let_go(first, self.fleet)
        self.fleet.world.adapters["team-a/pool"].clear()  # type: ignore[attr-defined]
        self.fleet.planner("team-a/pool").forget(first.key)
        made = await self.apply(self.adapter("sql", OLD, **spec))
        assert ready(made)[:2] == ("True", "Ready")
        self.old = made.status.digest
        return made

    def update(self, case: str = NEW) -> None:
        """Change the content at the source."""
        self.put("sql", case)
        self.forget_sources()

    async def served(self) -> list[str]:
        """Return by engine which revision answers: "old", "new" or ""."""
        found = []
        for rig in self.rigs:
            revision = rig.engine.revisions.get(rig.engine.served.get("team-a/sql", 0))
            found.append(self.called(revision.digest) if revision else "")
        return found

    def called(self, digest: str) -> str:
        """Return "old", "new", or another revision's digest."""
        return {self.old: "old", self.new: "new"}.get(digest, digest)

    def moves(self) -> list[list[str]]:
        """Return by engine what the name came to mean, one after another, over all its starts."""
        found = []
        for rig in self.rigs:
            digests = [digest for name, digest in rig.engine.moves if name == "team-a/sql"]
            found.append([self.called(digest) for digest, _ in groupby(digests)])
        return found

    def spec(self, made: LoRAAdapter, **spec: Any) -> LoRAAdapter:
        """Return the adapter with another spec, as an edit makes it."""
        edited = made.spec.model_validate({**made.spec.to_api(), **spec})
        metadata = made.metadata.model_copy(update={"generation": made.metadata.generation + 1})
        return made.model_copy(update={"spec": edited, "metadata": metadata})

    def later(self, made: LoRAAdapter, seconds: int) -> LoRAAdapter:
        """Return the adapter as if its trial had begun so much earlier."""
        trial = made.status.canary
        assert trial is not None
        assert trial.since is not None
        since = trial.since - timedelta(seconds=seconds)
        moved = made.status.model_copy(update={"canary": trial.model_copy(update={"since": since})})
        return made.model_copy(update={"status": moved})

    async def refresh(self) -> None:
        """Hear what the sidecars say now."""
        await asyncio.gather(*(link.refresh() for link in self.fleet.links.all()))

    async def until(self, made: LoRAAdapter, reason: str, passes: int = 12) -> LoRAAdapter:
        """Run passes until Ready says `reason`, each after it has heard what the sidecars say."""
        for _ in range(passes):
            await self.refresh()
            made = await self.apply(made)
            if ready(made)[1] == reason:
                return made
        raise AssertionError(f"not {reason} after {passes} passes: {ready(made)}")


@asynccontextmanager
async def scene(volume: Path, root: Path, engines: int = 3, **rig: Any) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        rigs = [
            await stack.enter_async_context(
                Rig(volume / str(number), Behaviour(), pod_uid=f"u{number}", **rig)
            )
            for number in range(engines)
        ]
        op = await stack.enter_async_context(operator(root, *rigs))
        found = Scene(op.fleet, op.root)
        found.rigs = rigs
        yield found


async def decided_while(
    op: Scene, made: LoRAAdapter, then: Callable[[], Awaitable[None]]
) -> LoRAAdapter:
    """Run a pass in which `then` happens once the decision is written, and before a name moves."""
    found = []

    async def announce(said: Report) -> None:
        if said.status.decided is not None:
            found.append(said.status.decided)
            await then()

    said = await reconcile(made, "2026-01-01T00:00:00Z", op.fleet, announce)
    assert len(found) == 1
    after = made.model_copy(update={"status": said.status})
    op.keep(after)
    return after


async def waited_for(op: Scene, number: int) -> LoRAAdapter:
    """Serve an adapter, end one of its engines, and run a pass that brings its next revision."""
    made = await op.begin(rollout=ATOMIC)
    await silence(op, number)
    op.update()
    return await op.apply(made)


async def decided_without(op: Scene, number: int) -> LoRAAdapter:
    """Serve an adapter, and run a pass in which an engine ends after the decision about its next
    revision, and before a name moves."""
    made = await op.begin(rollout=ATOMIC)
    op.update()
    return await decided_while(op, made, lambda: silence(op, number))


async def silence(op: Scene, number: int) -> None:
    """End an engine's vLLM, and let everybody know."""
    rig = op.rigs[number]
    await rig.engine.kill()
    await until(lambda: not rig.sidecar.agent.observed.usable)
    await op.refresh()


async def started(op: Scene, number: int) -> None:
    """Start it again, and let everybody know."""
    rig = op.rigs[number]
    await rig.engine.start()
    await until(lambda: rig.sidecar.agent.observed.usable)
    await op.refresh()


async def back(op: Scene, number: int) -> None:
    """Start it again, and wait until its sidecar has brought back what it brings back by itself."""
    rig = op.rigs[number]
    before = len(rig.engine.loads)
    await started(op, number)
    wanted = rig.sidecar.agent.desired.digests()
    await until(lambda: wanted <= {digest for _, digest in rig.engine.loads[before:]})
    async with rig.sidecar.agent.turn:  # whatever it is at, it has ended
        pass
    await op.refresh()


def never_back(op: Scene) -> None:
    """No name of any engine ever went back to the old revision once the new one was served."""
    for moves in op.moves():
        later = moves[moves.index("new") :] if "new" in moves else []
        assert "old" not in later, moves
