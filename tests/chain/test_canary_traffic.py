"""A trial by a share of the traffic, as clients behind a gateway see it, counted.

Real: API server, operator, sidecars, and a small gateway that follows the HTTPRoute and the slices.
The engines are fake ones whose answers name the revision. They listen at addresses of this machine
beside loopback, which no slice may hold; adding these needs root.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from operator_chain import GROUP, Chain
from processes import free_port, listens
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_rest import Json, KubeRest
    from localcluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
TESTS = Path(__file__).parents[1]
FIRST, SECOND, THIRD = "d01-plain-bf16", "d02-all-fp32", "d11-rslora"
HOST, HEADER = "sql.example", "X-Gateway-Model-Name"
ENGINES, PERCENT, REQUESTS = 3, 20, 400
ROUTE = {"gateway": {"name": "front"}, "hostname": HOST, "modelHeader": HEADER}


@pytest.fixture
def network() -> Iterator[str]:
    """Addresses of this machine for the engines, by their first three parts; no packet leaves it."""
    network = f"10.213.{random.randint(100, 250)}"
    with ExitStack() as undo:
        for number in range(1, ENGINES + 1):
            address = f"{network}.{number}/32"
            subprocess.run(["ip", "addr", "add", address, "dev", "lo"], check=True)
            undo.callback(subprocess.run, ["ip", "addr", "del", address, "dev", "lo"], check=True)
        yield network


@pytest.fixture
def chain(cluster: LocalCluster, namespace: str, tmp_path: Path, network: str) -> Iterator[Chain]:
    """Three engines and an operator."""
    chain = Chain(cluster.kubeconfig, tmp_path, namespace, network)
    try:
        for index in range(ENGINES):
            chain.start_engine(f"engine-{index}", index, LORAFLEET_ALLOW_INSECURE="true")
        yield chain
    finally:
        chain.stop()


@pytest.fixture
def client(chain: Chain, gateway_api: None) -> Iterator[Client]:
    """A client of a gateway that follows the API server."""
    port = free_port()
    program = TESTS / "weighted_gateway.py"
    process = chain.stack.start(
        "gateway",
        [sys.executable, program, chain.kubeconfig, chain.namespace, str(port)],
        {"PYTHONPATH": str(TESTS)},
    )
    process.wait_until(lambda: listens("127.0.0.1", port), 60)
    with Client(f"http://127.0.0.1:{port}", f"{chain.namespace}/sql") as client:
        yield client


@pytest.fixture
def gateway_api(kube: KubeRest) -> Iterator[None]:
    document = yaml.safe_load((TESTS / "httproute_crd.yaml").read_text())
    kube.install_crd(document)
    yield
    kube.remove_crd(document["metadata"]["name"])


class Client(httpx.Client):
    """Asks for one adapter through the gateway, and counts the answers: a revision, or a status."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(base_url=url, headers={"host": HOST, HEADER: model}, timeout=60)
        self.model = model

    def ask(self) -> str:
        answer = self.post("/v1/completions", json={"model": self.model, "prompt": "x"})
        if answer.status_code != 200:
            return str(answer.status_code)
        return str(answer.json()["choices"][0]["text"])

    def count(self, requests: int) -> Counter[str]:
        return Counter(self.ask() for _ in range(requests))


@contextmanager
def asking(client: Client) -> Iterator[Counter[str]]:
    """Ask without a pause while the block runs; what came of it is counted there."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def run() -> None:
        with Client(str(client.base_url), client.model) as own:
            while not over.is_set():
                seen[own.ask()] += 1
                time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def about(share: float, requests: int) -> tuple[float, float]:
    """Between what counts a fair gateway is with all but one in a million."""
    expected, spread = share * requests, 5 * sqrt(share * (1 - share) * requests)
    return expected - spread, expected + spread


def split(kube: KubeRest, namespace: str) -> dict[str, int]:
    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes/lora-sql"
    (rule,) = kube.get(path)["spec"]["rules"]
    return {each["name"].partition("-")[0]: each["weight"] for each in rule["backendRefs"]}


def on_trial(chain: Chain, fresh: str) -> Json | None:
    """Return what the status says of a trial of other content than `fresh` that has begun."""
    trial: Json = chain.status("sql").get("canary") or {}
    return trial if trial.get("since") and trial["digest"][7:19] != fresh else None


def says(chain: Chain, status: str, reason: str) -> bool:
    found = chain.full_condition("sql", "Ready")
    return (found.get("status"), found.get("reason")) == (status, reason)


def patch(chain: Chain, **spec: Any) -> None:
    chain.custom.patch_namespaced_custom_object(
        *GROUP, chain.namespace, "loraadapters", "sql", {"spec": spec}
    )


def test_a_trial_gets_its_share_of_the_requests_then_all_of_them_or_none(
    chain: Chain, kube: KubeRest, client: Client
) -> None:
    canary = {"trafficPercent": PERCENT, "holdSeconds": 600, "maxErrorRate": "10%"}
    chain.start_operator()
    chain.pool(enginePort=chain.engine_port)
    chain.adapter("sql", FIRST, rollout={"canary": canary}, routing={"httpRoute": ROUTE})
    eventually(lambda: says(chain, "True", "Ready"), what="the first revision")
    first = chain.status("sql")["digest"][7:19]
    eventually(lambda: client.ask() == first, what="the route leads to the engines")
    assert split(kube, chain.namespace) == {"stable": 100, "canary": 0}

    # A good one: its share of the requests while it is on trial, then all of them.
    with asking(client) as seen:
        chain.put_source("sql", SECOND)
        eventually(lambda: on_trial(chain, first), what="a trial")
        trial = chain.status("sql")["canary"]
        second = trial["digest"][7:19]
        assert (trial["engines"], trial["trafficPercent"]) == (1, PERCENT)
        eventually(lambda: split(kube, chain.namespace) == {"stable": 80, "canary": PERCENT})
        eventually(lambda: client.ask() == second, what="the gateway follows")
        counted = client.count(REQUESTS)
        assert on_trial(chain, first), "it was on trial all the time"
        low, high = about(PERCENT / 100, REQUESTS)
        assert low < counted[second] < high
        assert counted.keys() == {first, second}
        assert chain.status("sql")["readyEngines"] == ENGINES
        patch(chain, rollout={"canary": {**canary, "holdSeconds": 1}})
        eventually(lambda: says(chain, "True", "Ready"), what="promoted")
        eventually(lambda: client.count(20) == {second: 20}, what="all of the traffic")
    assert seen.keys() == {first, second}, "no request failed at any time"
    assert split(kube, chain.namespace) == {"stable": 100, "canary": 0}
    assert "canary" not in chain.status("sql")

    # A bad one: as many requests fail as it gets, then none.
    patch(chain, rollout={"canary": canary})
    chain.put_source("sql", THIRD)
    eventually(lambda: on_trial(chain, second), what="a trial")
    third = chain.status("sql")["canary"]["digest"]
    eventually(lambda: split(kube, chain.namespace)["canary"] == PERCENT)
    for engine in chain.engines.values():
        httpx.post(f"{engine.url}/test/failing", json={"digest": third}, timeout=60)
    with asking(client) as seen:
        eventually(lambda: says(chain, "False", "RolledBack"), what="a rollback")
        eventually(lambda: client.count(20) == {second: 20}, what="none of the traffic")
    assert seen.keys() == {second, "500"}
    assert seen["500"] < about(PERCENT / 100, seen.total())[1]
    assert split(kube, chain.namespace) == {"stable": 100, "canary": 0}
    assert client.count(REQUESTS) == {second: REQUESTS}
    note = chain.status("sql")["rolledBack"]
    assert (note["digest"], note["reason"]) == (third, "ErrorRate")


def test_without_the_gateway_api_the_share_is_one_of_engines(chain: Chain, kube: KubeRest) -> None:
    def service() -> list[str]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{chain.namespace}/endpointslices"
        return sorted(
            endpoint["addresses"][0]
            for each in kube.get(path)["items"]
            if each["metadata"]["labels"]["kubernetes.io/service-name"] == "lora-sql"
            for endpoint in each["endpoints"] or []
        )

    def answers() -> Counter[str]:
        """What a client gets that asks each engine behind the adapter's Service in turn."""
        seen: Counter[str] = Counter()
        for address in service():
            with Client(
                f"http://{address}:{chain.engine_port}", f"{chain.namespace}/sql"
            ) as client:
                seen[client.ask()] += 1
        return seen

    canary = {"trafficPercent": 33, "holdSeconds": 600}
    chain.start_operator()
    chain.pool(enginePort=chain.engine_port)
    chain.adapter("sql", FIRST, rollout={"canary": canary}, routing={"httpRoute": ROUTE})
    eventually(lambda: says(chain, "True", "Ready"), what="the first revision")
    assert chain.condition("sql", "Routed") == ("False", "GatewayApiMissing")
    first = chain.status("sql")["digest"][7:19]
    eventually(lambda: answers() == {first: ENGINES})
    chain.put_source("sql", SECOND)
    eventually(lambda: on_trial(chain, first), what="a trial")
    second = chain.status("sql")["canary"]["digest"][7:19]
    assert answers() == {first: 2, second: 1}
    patch(chain, rollout={"canary": {**canary, "holdSeconds": 1}})
    eventually(lambda: says(chain, "True", "Ready"), what="promoted")
    eventually(lambda: answers() == {second: ENGINES})
