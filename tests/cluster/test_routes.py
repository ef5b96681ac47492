"""Services, EndpointSlices and HTTPRoutes on a real API server, with simulated engines behind them.

The engines are dialled on loopback, which no slice may name; the router is told addresses that it
may, as it would be of real pods.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from chart_role import kubeconfig, token
from kubernetes.aio import config
from localstack import LocalStack
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.cluster.owned import NotWritten
from lorafleet_operator.cluster.reads import EnginePod
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.routing.endpoints import HttpRoute, Intent
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import World
from operator_builders import BASE, pool
from resource_builders import path
from simulated_engine import Behaviour, Books, SimulatedEngine, profile_of
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kube_rest import Json, KubeRest
    from localcluster import LocalCluster

ADAPTER, UID = "pirate", "4a1c7c8e-0000-4000-8000-000000000001"
NEW, OLD = "sha256:" + "a" * 64, "sha256:" + "b" * 64
CRD = Path(__file__).parents[1] / "httproute_crd.yaml"


class Engines:
    """Simulated engines in one fleet; `serve` and `pod` change what the router has to follow."""

    def __init__(self, fleet: Fleet, engines: list[SimulatedEngine], pods: list[EnginePod]) -> None:
        self.fleet, self.engines, self.pods = fleet, engines, pods

    def serve(self, number: int, digest: str = NEW, **fields: Any) -> None:
        """Let an engine serve a revision, and nothing else."""
        namespace = self.pods[number].namespace
        name = f"{namespace}/{ADAPTER}"
        entry = pb.LoadedAdapter(adapter=name, served_name=name, digest=digest, published=True)
        for field, value in fields.items():
            setattr(entry, field, value)
        engine = self.engines[number]
        engine.loaded = {(name, digest): entry}
        engine._changed()

    def pod(self, number: int, **changes: Any) -> None:
        """Let a pod change, as a watch would tell."""
        self.pods[number] = pod = replace(self.pods[number], **changes)
        self.fleet.pods[pod.uid] = replace(pod, ip=f"10.9.0.{number + 1}")
        self.fleet.pod_changed(pod, gone=False)


@asynccontextmanager
async def engines(cluster: LocalCluster, namespace: str, count: int) -> AsyncIterator[Engines]:
    behaviour, books = Behaviour(), Books()
    made, pods = [], []
    for number in range(count):
        address = f"127.{part_of(namespace)}.{number + 1}"
        pod = EnginePod(namespace, f"engine-{number}", f"uid-{number}", address, (("app", "vllm"),))
        pods.append(replace(pod, ready=True, node=f"node-{number}"))
        engine = SimulatedEngine(pod.uid, f"{address}:7070", profile_of(BASE), behaviour, books)
        await engine.start()
        made.append(engine)
    own = pool().model_copy(update={"metadata": pool().metadata.model_copy(
        update={"namespace": namespace}
    )})  # fmt: skip
    world = World({namespace: pods}, {namespace: [own]}, {}, {}, set())
    api = await config.new_client_from_config(config_file=str(cluster.kubeconfig))
    fleet = Fleet(OperatorSettings(), world, api)
    for number, pod in enumerate(pods):
        fleet.pods[pod.uid] = replace(pod, ip=f"10.9.0.{number + 1}")
    fleet.sync_links()
    try:
        await asyncio.gather(*(link.tried.wait() for link in fleet.links.all()))
        yield Engines(fleet, made, pods)
    finally:
        await fleet.close()
        await asyncio.gather(*(engine.kill() for engine in made))


def part_of(namespace: str) -> str:
    """Return a part of an address that other tests at the same time do not use."""
    number = int(namespace.rpartition("-")[2], 16)
    return f"{9 + number // 250 % 50}.{number % 250}"


def intent(namespace: str, **fields: Any) -> Intent:
    return Intent(namespace, ADAPTER, UID, f"{namespace}/{ADAPTER}", 8000, **fields)


def objects(kube: KubeRest, namespace: str, plural: str) -> dict[str, Json]:
    """Return the objects of a kind by name."""
    group = {
        "services": "/api/v1",
        "endpointslices": "/apis/discovery.k8s.io/v1",
        "httproutes": "/apis/gateway.networking.k8s.io/v1",
    }[plural]
    found = kube.get(f"{group}/namespaces/{namespace}/{plural}")["items"]
    return {each["metadata"]["name"]: each for each in found}


def addresses(kube: KubeRest, namespace: str, service: str = f"lora-{ADAPTER}") -> list[str]:
    """Return the ready addresses behind a Service, as a proxy finds them."""
    return sorted(
        address
        for each in objects(kube, namespace, "endpointslices").values()
        if each["metadata"]["labels"]["kubernetes.io/service-name"] == service
        for endpoint in each["endpoints"] or []
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def test_a_service_names_exactly_the_engines_that_serve(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    def named(*expected: str) -> Callable[[], bool]:
        return lambda: addresses(kube, namespace) == [f"10.9.0.{n}" for n in expected]

    async with engines(cluster, namespace, 3) as there:
        router = there.fleet.router
        there.serve(0)
        there.serve(1, OLD)
        await until(lambda: len(there.fleet.holders.loaded_on(f"{namespace}/{ADAPTER}")) == 2)
        assert await router.show(intent(namespace)) is None
        service = objects(kube, namespace, "services")[f"lora-{ADAPTER}"]
        assert service["spec"]["ports"] == [
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8000}
        ]
        assert "selector" not in service["spec"]
        (owner,) = service["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("LoRAAdapter", ADAPTER, UID)
        (found,) = objects(kube, namespace, "endpointslices").values()
        assert found["ports"] == [{"name": "http", "port": 8000, "protocol": "TCP"}]
        assert found["endpoints"][0] == {
            "addresses": ["10.9.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "node-0",
            "targetRef": {
                "kind": "Pod",
                "name": "engine-0",
                "namespace": namespace,
                "uid": "uid-0",
            },
        }
        assert named("1", "2")()

        before = await asyncio.to_thread(versions, kube, namespace)
        assert await router.show(intent(namespace)) is None
        there.engines[0]._changed()  # an inventory that says nothing new
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(versions, kube, namespace) == before, "nothing is written"

        there.serve(2)
        await until(named("1", "2", "3"))
        there.serve(0, draining=True)
        await until(named("2", "3"))
        there.pod(1, ready=False)
        await until(named("3"))
        there.pod(1, ready=True)
        await until(named("2", "3"))
        await there.engines[2].kill()
        await until(named("2"))
        await there.engines[1].kill()  # the last one: nobody knows, so it stays
        await until(lambda: bool(there.fleet.links.get("uid-1").problem))  # type: ignore[union-attr]
        await asyncio.sleep(0.3)
        assert named("2")()
        there.pod(1, running=False, terminating=True)
        await until(named())
        (found,) = objects(kube, namespace, "endpointslices").values()
        assert found["endpoints"][0]["conditions"] == {
            "ready": False,
            "serving": True,
            "terminating": True,
        }

        assert await router.withdraw(f"{namespace}/{ADAPTER}", UID) is None
        assert objects(kube, namespace, "services") == {}
        assert objects(kube, namespace, "endpointslices") == {}


def versions(kube: KubeRest, namespace: str) -> set[str]:
    """Return what changes with each write."""
    return {
        each["metadata"]["resourceVersion"]
        for plural in ("services", "endpointslices")
        for each in objects(kube, namespace, plural).values()
    }


async def test_the_operator_keeps_what_adapters_and_pools_ask_for(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    """With the rights of the chart; the engines' addresses are loopback, so that slices are empty."""

    def services() -> dict[str, Json]:
        return objects(kube, namespace, "services")

    def ask(name: str, kind: str = "LoRAAdapter", **routing: Any) -> None:
        kube.merge(path(kind, namespace, name), {"spec": {"routing": routing}})

    def routed() -> list[str]:
        status = kube.get(path("LoRAAdapter", namespace, "a"))["status"]
        return [c["status"] for c in status["conditions"] if c["type"] == "Routed"] + [
            status.get("routing", {}).get("service", "")
        ]

    fleet = SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=1, replicas=1)
    with LocalStack(tmp_path) as stack:
        async with fleet:
            await fleet.apply("a")
            rights = kubeconfig(cluster.kubeconfig, tmp_path / "rights", token(kube, namespace))
            stack.start_operator(
                rights, LORAFLEET_NAMESPACES=namespace, LORAFLEET_VOLUME_ROOT=str(fleet.root)
            )
            await fleet.settled(60)
            assert services() == {}
            ask("a", service=True)
            await until(lambda: services().keys() == {"lora-a"})
            await until(lambda: routed() == ["True", "lora-a"])
            assert objects(kube, namespace, "endpointslices").keys() == {"lora-a.v4-0"}

            kube.delete(f"/api/v1/namespaces/{namespace}/services/lora-a")
            await until(lambda: services().keys() == {"lora-a"})
            ports = [{"name": "http", "port": 81}]
            kube.merge(
                f"/api/v1/namespaces/{namespace}/services/lora-a", {"spec": {"ports": ports}}
            )
            await until(lambda: services()["lora-a"]["spec"]["ports"][0]["port"] == 80)

            ask("pool", "EnginePool", service=True)
            await until(lambda: "lorapool-pool" in services())
            assert services()["lorapool-pool"]["spec"]["selector"] == {"app": "simulated"}
            ask("pool", "EnginePool", service=False, adapterServices=True)
            await until(lambda: services().keys() == {"lora-a"})

            ask("a", service=False)
            await until(lambda: services() == {})
            await until(lambda: objects(kube, namespace, "endpointslices") == {})
            await until(lambda: routed() == [""])
            ask("a", service=None)  # the pool's default
            await until(lambda: services().keys() == {"lora-a"})
            await fleet.delete("a")
            await until(lambda: services() == {})


async def test_somebody_elses_service_is_left_alone(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    theirs = {"metadata": {"name": f"lora-{ADAPTER}"}, "spec": {"ports": [{"port": 1}]}}
    kube.create(f"/api/v1/namespaces/{namespace}/services", theirs)
    async with engines(cluster, namespace, 0) as there:
        problem = await there.fleet.router.show(intent(namespace))
        assert isinstance(problem, NotWritten)
        assert problem.reason is Reason.ROUTE_NAME_TAKEN
        assert str(problem) == (
            f"Service lora-{ADAPTER} exists and is not the operator's; rename or delete it"
        )
        assert objects(kube, namespace, "services")[f"lora-{ADAPTER}"]["spec"]["ports"][0][
            "port"
        ] == 1  # fmt: skip


GATEWAY = HttpRoute("front", "gateways", "https", "pirate.example", "X-Gateway-Model-Name")


async def test_without_the_gateway_api_the_service_is_there_and_a_line_says_what_is_missing(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    async with engines(cluster, namespace, 0) as there:
        problem = await there.fleet.router.show(intent(namespace, http_route=GATEWAY))
        assert isinstance(problem, NotWritten)
        assert problem.reason is Reason.GATEWAY_API_MISSING
        assert str(problem) == "the cluster has no HTTPRoute of gateway.networking.k8s.io/v1"
        assert objects(kube, namespace, "services").keys() == {f"lora-{ADAPTER}"}


@pytest.fixture(scope="module")
def gateway_api(kube: KubeRest) -> Iterator[None]:
    """The test copy of the HTTPRoute CRD, from the first test that wants it to the last of this module."""
    document = yaml.safe_load(CRD.read_text())
    kube.install_crd(document)
    yield
    kube.remove_crd(document["metadata"]["name"])


@pytest.mark.usefixtures("gateway_api")
async def test_a_route_splits_requests_while_a_revision_is_on_trial(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    def weights() -> dict[str, int]:
        (route,) = objects(kube, namespace, "httproutes").values()
        (rule,) = route["spec"]["rules"]
        return {each["name"]: each["weight"] for each in rule["backendRefs"]}

    stable, canary = f"stable-lora-{ADAPTER}", f"canary-lora-{ADAPTER}"
    split = intent(namespace, http_route=GATEWAY, split=True)
    async with engines(cluster, namespace, 3) as there:
        show = there.fleet.router.show
        for number in range(3):
            there.serve(number, OLD)
        await until(lambda: len(there.fleet.holders.loaded_on(f"{namespace}/{ADAPTER}")) == 3)
        assert await show(split) is None
        (route,) = objects(kube, namespace, "httproutes").values()
        assert route["metadata"]["name"] == f"lora-{ADAPTER}"
        assert route["spec"]["hostnames"] == ["pirate.example"]
        (parent,) = route["spec"]["parentRefs"]
        assert (parent["name"], parent["namespace"], parent["sectionName"]) == (
            "front",
            "gateways",
            "https",
        )
        (match,) = route["spec"]["rules"][0]["matches"]
        assert match["headers"] == [
            {"type": "Exact", "name": "X-Gateway-Model-Name", "value": f"{namespace}/{ADAPTER}"}
        ]
        assert weights() == {stable: 100, canary: 0}

        there.serve(0, NEW)
        trial = replace(split, trial=NEW, percent=10)
        await until(lambda: there.fleet.links.get("uid-0").inventory.loaded[0].digest == NEW)  # type: ignore[union-attr]
        assert await show(trial) is None
        assert weights() == {stable: 90, canary: 10}
        assert addresses(kube, namespace, canary) == ["10.9.0.1"]
        assert addresses(kube, namespace, stable) == ["10.9.0.2", "10.9.0.3"]
        assert addresses(kube, namespace) == ["10.9.0.1", "10.9.0.2", "10.9.0.3"]
        before = objects(kube, namespace, "httproutes")
        assert await show(trial) is None
        assert objects(kube, namespace, "httproutes") == before, "nothing is written"

        await there.engines[0].kill()  # the only one on trial: nobody may be sent there
        await until(lambda: weights() == {stable: 100, canary: 0})
        assert await show(replace(split, split=False, http_route=None)) is None
        assert objects(kube, namespace, "httproutes") == {}
        assert objects(kube, namespace, "services").keys() == {f"lora-{ADAPTER}"}


@pytest.mark.usefixtures("gateway_api")
async def test_what_the_api_server_refuses_is_told_in_its_words(
    cluster: LocalCluster, namespace: str
) -> None:
    nameless = replace(GATEWAY, gateway="")
    async with engines(cluster, namespace, 0) as there:
        problem = await there.fleet.router.show(intent(namespace, http_route=nameless))
        assert isinstance(problem, NotWritten)
        assert problem.reason is Reason.ROUTE_REFUSED
        assert str(problem).startswith(f"HTTPRoute lora-{ADAPTER}: HTTPRoute")
        assert "spec.parentRefs[0].name in body should be at least 1 chars long" in str(problem)


@pytest.mark.usefixtures("gateway_api")
async def test_an_operator_that_has_started_knows_the_route_that_another_has_made(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    wanted = intent(namespace, http_route=GATEWAY)
    async with engines(cluster, namespace, 0) as there:
        assert await there.fleet.router.show(wanted) is None
    before = objects(kube, namespace, "httproutes")
    async with engines(cluster, namespace, 0) as there:
        for kind, plural in (("Service", "services"), ("EndpointSlice", "endpointslices")):
            for each in objects(kube, namespace, plural).values():
                there.fleet.router.owned.note(kind, each)
        assert await there.fleet.router.show(wanted) is None
        assert objects(kube, namespace, "httproutes") == before
        routes = [("HTTPRoute", namespace, f"lora-{ADAPTER}")]
        await there.fleet.router.withdraw(wanted.key, UID, routes)
        assert objects(kube, namespace, "httproutes") == {}
