"""A fleet over rigs, without an API server: passes run when a test asks for them."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubernetes.aio.client import ApiClient, Configuration
from lorafleet_operator.cluster.reads import EnginePod
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.reconcile import reconcile
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.transfer.links import Endpoint
from lorafleet_operator.world import KnownAdapter, World
from operator_builders import adapter as built
from operator_builders import pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.report import Report
    from sidecar_rig import Rig

CASES = Path(__file__).parent / "cases"


class Operator:
    """A fleet over rigs; `apply` runs one pass over an adapter and keeps its status."""

    def __init__(self, fleet: Fleet, root: Path) -> None:
        self.fleet = fleet
        self.root = root
        self.announced: list[Report] = []

    def put(self, name: str, case: str) -> None:
        target = self.root / "team-a" / "claim" / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(CASES / case, target)

    def adapter(self, name: str, case: str = "d01-plain-bf16", **spec: Any) -> LoRAAdapter:
        self.put(name, case)
        claim = {"claimName": "claim", "path": name}
        made = built(name, source={"persistentVolumeClaim": claim}, **spec)
        self.keep(made)
        return made

    def keep(self, made: LoRAAdapter) -> None:
        """Make it what the watches have brought."""
        known = [k for k in self.fleet.world.adapters["team-a/pool"] if k.key != made.key]
        created = "2026-01-01T00:00:00Z"
        self.fleet.world.adapters["team-a/pool"][:] = [*known, KnownAdapter.of(made, created)]  # type: ignore[index]
        self.fleet.world.existing["team-a"][:] = [  # type: ignore[index]
            k.key for k in self.fleet.world.adapters["team-a/pool"]
        ]

    async def apply(self, made: LoRAAdapter) -> LoRAAdapter:
        async def announce(said: Report) -> None:
            self.announced.append(said)

        found = await reconcile(made, "2026-01-01T00:00:00Z", self.fleet, announce)
        after = made.model_copy(update={"status": found.status})
        self.keep(after)
        return after

    def forget_sources(self) -> None:
        self.fleet.memory.__init__()  # type: ignore[misc] # as after a restart of the operator


@asynccontextmanager
async def operator(root: Path, *rigs: Rig) -> AsyncIterator[Operator]:
    pods = [
        EnginePod(
            "team-a", f"engine-{i}", rig.sidecar._settings.pod_uid, "127.0.0.1", (("app", "vllm"),)
        )
        for i, rig in enumerate(rigs)
    ]
    world = World(
        {"team-a": pods}, {"team-a": [pool()]}, {"team-a/pool": []}, {"team-a": []}, set()
    )
    # Not the process's default, which other tests may have set to anything.
    async with ApiClient(Configuration()) as api:
        settings = OperatorSettings(
            volume_root=root / "sources", push_dir=root / "pushed", allow_private_addresses=True
        )
        fleet = Fleet(settings, world, api)
        # Rigs share an address, so each pod's port is its own.
        fleet.connect(
            [
                Endpoint(pod.key, pod.uid, "127.0.0.1", rig.sidecar.port)
                for pod, rig in zip(pods, rigs, strict=True)
            ],
            {pod.uid for pod in pods},
        )
        yield Operator(fleet, root / "sources")
        await fleet.readers.close()
        await fleet.links.close()


def ready(made: LoRAAdapter) -> tuple[str, str, str]:
    found = next(c for c in made.status.conditions if c.type == "Ready")
    return found.status, found.reason, found.message
