"""`kubectl lora push` by the real kubectl, through the real API server, to a release's own operator."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import socketserver
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import kubectl_schema
import pytest
import yaml
from chart_release import Release
from gated_fleet import GatedFleet
from kubectl_lora import KubectlLora, Ran
from kubelet_ports import KubeletPorts
from localstack import LocalStack
from lorafleet_operator.kubectl.api import Failed, Kubectl
from lorafleet_operator.kubectl.tunnel import Tunnel
from pod_process import pod_of
from processes import free_port
from pushing import PUSH_RULES, RBAC, Content, account, folder
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_rest import KubeRest
    from localcluster import LocalCluster

DOCUMENTED = Path(__file__).parents[2] / "docs" / "push.md"
VALUES = ("crds.enabled=false", "injection.enabled=false", "push.enabled=true")
NEW = ("--base-model", "tiny/simulated", "--pool", "pool")


class Scene:
    """A release that takes pushes, two engines, and somebody who may push and no more."""

    def __init__(self, lora: KubectlLora, kubeconfig: Path, namespace: str, system: str) -> None:
        self.lora, self.kubeconfig, self.namespace, self.system = (
            lora,
            kubeconfig,
            namespace,
            system,
        )
        self.flags = (f"--as=person-{namespace}", "-n", namespace)
        self.where = ("--service", f"{system}/lorafleet-push", "--service-account", "trainer")

    async def push(self, made: Path | str, *more: str, name: str = "rl") -> Ran:
        words = ("push", name, str(made), *self.flags, *self.where, *more)
        return await asyncio.to_thread(self.lora.run, *words)

    async def refused(self, made: Path | str, *more: str, name: str = "rl") -> str:
        ran = await self.push(made, *more, name=name)
        assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran
        return ran.err.removeprefix("kubectl lora: ").rstrip("\n")


@pytest.fixture
async def scene(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    release = Release(kube, cluster.kubeconfig, system, *VALUES, f"namespaces={{{namespace}}}")
    release.install()
    port = free_port()
    fleet = GatedFleet(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=Behaviour())
    kubelet = KubeletPorts(kube, tmp_path, f"node-{system}", {9443: port})
    with LocalStack(tmp_path) as stack, kubelet:
        async with fleet:
            for number in range(2):
                await fleet.add(f"engine-{number}")
            account(kube, namespace, "trainer", PUSH_RULES)
            let_push(kube, f"person-{namespace}", namespace, system)
            run_on(kube, system, f"node-{system}")
            release.start_operator(
                stack,
                {"/pushed": tmp_path / "pushed"},
                LORAFLEET_PUSH_LISTEN=f"127.0.0.1:{port}",
                LORAFLEET_TLS_DIR="",  # the simulated engines have no certificates
            )
            lora = KubectlLora(tmp_path, cluster.kubeconfig)
            yield Scene(lora, cluster.kubeconfig, namespace, system)
    release.uninstall()


def let_push(kube: KubeRest, user: str, namespace: str, system: str) -> None:
    """Give a user the rights that the documentation names for one outside the cluster."""
    page = DOCUMENTED.read_text()
    section = page[page.index("## From outside") :]
    (block,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    for role in yaml.safe_load_all(block):
        there = {"lorafleet-system": system, "team-a": namespace}[role["metadata"]["namespace"]]
        name, place = role["metadata"]["name"], f"{RBAC}/namespaces/{there}"
        kube.create(f"{place}/roles", {"metadata": {"name": name}, "rules": role["rules"]})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "User", "name": user}]
        body = {"metadata": {"name": name}, "subjects": subjects, "roleRef": reference}
        kube.create(f"{place}/rolebindings", body)


def run_on(kube: KubeRest, system: str, node: str) -> None:
    """Make the pod of the release's Deployment, as one that runs on the node."""
    deployment = kube.get(f"/apis/apps/v1/namespaces/{system}/deployments/lorafleet")
    pod = pod_of(deployment, "lorafleet-0")
    pod["spec"]["nodeName"] = node
    kube.create(f"/api/v1/namespaces/{system}/pods", pod)
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready}
    kube.merge(f"/api/v1/namespaces/{system}/pods/lorafleet-0/status", {"status": status})


async def test_a_person_with_the_documented_rights_pushes_and_waits(
    scene: Scene, tmp_path: Path
) -> None:
    first = folder(tmp_path / "first", Content.of(1, 2))
    ran = await scene.push(first, *NEW, "--wait", "--step", "7")
    assert (ran.status, ran.err) == (0, ""), ran
    key = f"{scene.namespace}/rl"
    lines = ran.out.splitlines()
    assert lines[0] == "0B/128B sent"
    assert lines[1] == "128B/128B sent", "both tensors in one message"
    revision = re.fullmatch(f"{key} is to serve revision ([0-9a-f]{{12}}), 128B sent", lines[2])
    assert revision is not None, lines
    assert lines[-1] == f"{key} serves revision {revision[1]}"
    assert all(" engines serve it, " in line for line in lines[3:-1])

    ran = await scene.push(first, "--wait", "-o", "json")
    told = json.loads(ran.out)
    jsonschema.validate(told, kubectl_schema.schema())
    assert (told["kind"], told["adapter"], told["ready"]) == ("Push", key, True)
    assert (told["unchanged"], told["sentBytes"]) == (True, 0)
    assert told["revision"].startswith(f"sha256:{revision[1]}")
    assert ran.err == ""

    second = folder(tmp_path / "second", Content.of(1, 3))
    drawn = await asyncio.to_thread(
        scene.lora.on_terminal, "push", "rl", str(second), *scene.flags, *scene.where, columns=40
    )
    assert drawn.status == 0, drawn.out
    assert re.search(r"\r\[#+\] 64B/64B sent", drawn.out), "a bar that is drawn over"
    assert ", 64B sent" in drawn.out
    assert "Traceback" not in drawn.out

    told = json.loads((await scene.push(second, "-o", "json")).out)
    assert (told["ready"], told["message"]) == (None, "")
    names = await scene.push(second, "-o", "name")
    assert names.out == "loraadapter.lorafleet.dev/rl\n"


async def test_each_refusal_is_one_line_and_nothing_is_touched(
    scene: Scene, kube: KubeRest, tmp_path: Path
) -> None:
    good = folder(tmp_path / "good", Content.of(1, 2))
    said = await scene.refused("s3://bucket/pirate", *NEW)
    assert said == (
        "s3://bucket/pirate is no folder; what lies in a store needs no push: name it in spec.source"
    )
    assert await scene.refused(tmp_path / "none", *NEW) == f"{tmp_path}/none is no folder"
    (tmp_path / "empty").mkdir()
    said = await scene.refused(tmp_path / "empty", *NEW)
    assert said == f"{tmp_path}/empty/adapter_config.json does not exist"
    dora = folder(tmp_path / "dora", Content.of(1, 2))
    config = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    assert "DoRA is not supported" in await scene.refused(dora, *NEW)

    assert await scene.refused(good, *NEW, "--service-account", "") == (
        f"who pushes? give --service-account NAME, one of namespace {scene.namespace} that may push, "
        "or --token-file FILE"
    )
    said = await scene.refused(good, *NEW, "--service-account", "stranger")
    assert "forbidden: " in said
    assert 'cannot create resource "serviceaccounts/token"' in said
    said = await scene.refused(good, *NEW, "--token-file", str(tmp_path / "none"))
    assert said == f"no token in {tmp_path}/none: No such file or directory"
    said = await scene.refused(good, *NEW, "--audience", "elsewhere")
    assert said == "the token is not valid for audience lorafleet"

    said = await scene.refused(good, *NEW, "--service", f"{scene.system}/other-push")
    assert said == (
        f"what signed the certificate of service {scene.system}/other-push cannot be read "
        "(ConfigMap other-push-ca: Forbidden; Secret other-push-tls: Forbidden): give --ca-file FILE"
    )
    ca = str(tmp_path / "kubelet" / "ca.crt")  # of somebody else
    said = await scene.refused(
        good, *NEW, "--service", f"{scene.system}/other-push", "--ca-file", ca
    )
    assert 'services "other-push" is forbidden' in said
    nobody = f"127.0.0.1:{free_port()}"
    said = await scene.refused(good, *NEW, "--address", nobody)
    assert said.startswith(f"no operator answers at {nobody}: ")
    said = await scene.refused(good, *NEW, "--ca-file", ca)
    assert said.startswith(f"no operator answers at service {scene.system}/lorafleet-push: ")
    assert "CERTIFICATE_VERIFY_FAILED" in said

    assert "names no base_model" in await scene.refused(good)
    place = f"/apis/lorafleet.dev/v1alpha1/namespaces/{scene.namespace}/loraadapters"
    assert kube.get(place)["items"] == []
    wrong = await scene.push(good, "--service", "lorafleet-push")
    assert wrong.status == 2
    assert "'lorafleet-push' is no NAMESPACE/NAME of a Service" in wrong.err


async def test_what_is_not_served_in_time_is_told_with_its_reason(
    scene: Scene, tmp_path: Path
) -> None:
    made = folder(tmp_path / "made", Content.of(1, 2))
    options = (*NEW[:3], "nowhere", "--wait", "--timeout", "5s")
    ran = await scene.push(made, *options, "-o", "json")
    assert ran.status == 1
    told = json.loads(ran.out)
    assert told["ready"] is False
    assert "PoolNotFound" in told["message"] or "another replica" in told["message"]
    assert ran.err.count("\n") == 1


def test_a_tunnel_that_breaks_is_made_again_at_its_port(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    place, labels = f"/api/v1/namespaces/{namespace}", {"app": "echo"}
    ports = [{"name": "push", "port": 1, "targetPort": "push"}]
    spec = {"selector": labels, "ports": ports}
    kube.create(f"{place}/services", {"metadata": {"name": "echo"}, "spec": spec})
    container = {"name": "c", "image": "i", "ports": [{"name": "push", "containerPort": 7}]}
    node = f"node-{namespace}"
    pod = {"metadata": {"name": "echo-0", "labels": labels}}
    kube.create(f"{place}/pods", {**pod, "spec": {"nodeName": node, "containers": [container]}})
    kube.merge(f"{place}/pods/echo-0/status", {"status": {"phase": "Running"}})
    kubectl = Kubectl([f"--kubeconfig={cluster.kubeconfig}"])
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {7: server.server_address[1]}
        with KubeletPorts(kube, tmp_path, node, there) as kubelet:
            with Tunnel(kubectl, namespace, "echo", "push") as tunnel:
                assert echoed(tunnel.address, b"one") == b"one"
                kubelet.cut()
                deadline = time.monotonic() + 60
                while len(kubelet.forwarded) < 2:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                while (found := echoed(tunnel.address, b"two" * 100_000)) != b"two" * 100_000:
                    assert time.monotonic() < deadline, found
            assert kubelet.forwarded == [(namespace, "echo-0")] * 2
            assert echoed(tunnel.address, b"three") == b"", "it is closed"
        with (
            pytest.raises(Failed, match=r"(?i)node-.* not found"),
            Tunnel(kubectl, namespace, "echo", "push"),
        ):
            pass
        server.shutdown()


class Echo(socketserver.BaseRequestHandler):
    """Sends back what comes, until the other side has sent all."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


def echoed(address: str, data: bytes) -> bytes:
    host, _, port = address.partition(":")
    found = b""
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=30) as connection:
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        while len(found) < len(data) and (part := connection.recv(1 << 16)):
            found += part
        sending.join()
    return found
