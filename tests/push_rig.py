"""Two simulated engines, an operator that takes pushes, and an account that may push."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from gated_fleet import GatedFleet
from localstack import LocalStack
from lorafleet.push import Fleet
from processes import free_port
from pushing import PUSH_RULES, Trainer, account, token
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

ADAPTERS = "/apis/lorafleet.dev/v1alpha1/namespaces"


class Scene:
    def __init__(
        self, fleet: GatedFleet, kube: KubeRest, address: str, start: Callable[..., Any], root: Path
    ) -> None:
        self.fleet, self.kube, self.address = fleet, kube, address
        self.start, self.root = start, root
        self.namespace = fleet.namespace
        self.operator = start()

    def trainer(self, name: str = "trainer", **more: Any) -> Trainer:
        return Trainer(self.address, token(self.kube, self.namespace, name), self.namespace, **more)

    @cached_property
    def token_file(self) -> Path:
        """A trainer's token, as its pod has it."""
        file = self.root.with_name("token")
        file.write_text(token(self.kube, self.namespace, "trainer") + "\n")
        return file

    def client(self, **more: Any) -> Fleet:
        """Return the trainers' library for this operator."""
        return Fleet(self.address, self.namespace, **{"token": self.token_file, **more})

    def adapter(self, name: str = "rl") -> dict[str, Any]:
        return self.kube.get(f"{ADAPTERS}/{self.namespace}/loraadapters/{name}")

    async def served(self, revision: str) -> None:
        """Wait until every engine serves the pushed revision."""

        def done() -> bool:
            return all(
                any(
                    entry.published and engine.staged[entry.digest].fingerprint == revision
                    for entry in engine.loaded.values()
                )
                for engine in self.fleet.engines.values()
            )

        await self.fleet.until(done)

    def has_a_whole_tensor(self) -> bool:
        found = list((self.root / self.namespace / "rl" / "data").glob("*.part.index"))
        return bool(found) and found[0].stat().st_size > 0

    def files(self) -> dict[str, int]:
        """What is on the spool's disk: the number of files by the last part of their folders."""
        found: dict[str, int] = {}
        for file in self.root.rglob("*"):
            if file.is_file():
                kind = "part" if ".part" in str(file) else file.relative_to(self.root).parts[2]
                found[kind] = found.get(kind, 0) + 1
        return found

    def stop(self) -> None:
        """Kill the operator."""
        self.operator.process.popen.kill()
        self.operator.process.popen.wait()

    def restart(self, **settings: str) -> None:
        """Start another one, after the one before has died."""
        self.operator.process.popen.wait(60)
        self.operator = self.start(**settings)

    def kept(self) -> list[str]:
        top = self.root / self.namespace / "rl" / "revisions"
        return sorted(each.name for each in top.iterdir()) if top.exists() else []


@pytest.fixture
async def scene(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    """Two engines and an operator that takes pushes; an account that may push."""
    made = GatedFleet(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=Behaviour())
    address = f"127.0.0.1:{free_port()}"
    with LocalStack(tmp_path) as stack:
        async with made:
            for number in range(2):
                await made.add(f"engine-{number}")
            account(kube, namespace, "trainer", PUSH_RULES)

            def start(**settings: str) -> Any:
                given = {
                    "LORAFLEET_NAMESPACES": namespace,
                    "LORAFLEET_PUSH_LISTEN": address,
                    "LORAFLEET_PUSH_DIR": str(tmp_path / "pushed"),
                }
                return stack.start_operator(cluster.kubeconfig, **{**given, **settings})

            yield Scene(made, kube, address, start, tmp_path / "pushed")
