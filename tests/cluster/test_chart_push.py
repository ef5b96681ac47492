"""A release that takes pushes: its certificate, its disk and its rights are enough, and no more is given."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from chart_release import Release
from localstack import LocalStack
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from processes import free_port
from pushing import PUSH_RULES, SAFE_POINT_RULE, Content, Trainer, account, token
from resource_builders import path, pool

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

PLAIN = ("crds.enabled=false", "injection.enabled=false", "push.enabled=true")


async def test_a_trainer_pushes_to_the_service_of_a_release_for_one_namespace(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    release = Release(kube, cluster.kubeconfig, system, *PLAIN, f"namespaces={{{namespace}}}")
    release.install()
    (service,) = [each for each in release.manifest() if each["kind"] == "Service"]
    assert service["spec"]["ports"] == [{"name": "push", "port": 9443, "targetPort": "push"}]
    account(kube, namespace, "trainer", [*PUSH_RULES, SAFE_POINT_RULE])
    kube.create(path("EnginePool", namespace), pool("pool"))
    secret = kube.get(f"/api/v1/namespaces/{system}/secrets/lorafleet-push-tls")
    place = f"/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters"
    listen = f"127.0.0.1:{free_port()}"
    trainer = Trainer(
        listen,
        token(kube, namespace, "trainer"),
        namespace,
        authority=base64.b64decode(secret["data"]["ca.crt"]),
        server_name=f"lorafleet-push.{system}.svc",
    )
    with LocalStack(tmp_path) as stack:
        release.start_operator(
            stack, {"/pushed": tmp_path / "pushed"}, LORAFLEET_PUSH_LISTEN=listen
        )
        first = await trainer.push(Content.of(1, 2), 1)
        second = await trainer.push(Content.of(1, 3), 2)
        assert (first.received_bytes, second.received_bytes) == (128, 64)
        (made,) = kube.get(place)["items"]
        assert made["spec"]["source"]["push"] == {"revision": second.revision, "step": 2}
        async with trainer.channel() as channel:
            request = pb.OpenSafePointRequest(namespace=namespace, name="rl")
            call = pb_grpc.PushServiceStub(channel).OpenSafePoint(
                request, metadata=trainer.metadata, timeout=60
            )
            said = [each.message async for each in call]
        assert said == ["no engine is due"]
        trainer.server_name = "elsewhere"
        with pytest.raises(grpc.aio.AioRpcError, match=r"UNAVAILABLE|DEADLINE"):
            await trainer.push(Content.of(1, 4), seconds=1)
    release.uninstall()
