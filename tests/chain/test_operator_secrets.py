"""Credentials that are wrong, missing, mended, rotated and taken away, through the running operator.

It has the rights of the chart's Role and no more. After a failure it waits for minutes, so what
becomes Ready here does so because somebody noticed the Secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chart_role import kubeconfig, token
from described import describe
from kubernetes import client
from localcluster import find_binary
from operator_chain import CASES, Chain
from waiting import eventually
from web_server import WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster
    from localstack import S3Server

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
RIGHT, WRONG = "a-right-token-c0ffee", "a-wrong-token-deadbeef"


@pytest.fixture
def chain(chain: Chain, cluster: LocalCluster, kube: KubeRest, tmp_path: Path) -> Chain:
    chain.start_engine("engine-0", 0)
    chain.pool()
    limited = kubeconfig(cluster.kubeconfig, tmp_path / "role", token(kube, chain.namespace))
    chain.start_operator(
        KUBECONFIG=str(limited),
        LORAFLEET_BACKOFF_SECONDS="600",
        LORAFLEET_BACKOFF_LIMIT_SECONDS="600",
    )
    return chain


class Keys:
    """The Secrets of a chain's namespace."""

    def __init__(self, chain: Chain) -> None:
        self._core: client.CoreV1Api = chain.core
        self._namespace = chain.namespace

    def put(self, name: str, **values: str) -> None:
        self.delete(name)
        body = {"metadata": {"name": name}, "stringData": values}
        self._core.create_namespaced_secret(self._namespace, body)

    def mend(self, name: str, **values: str) -> None:
        self._core.patch_namespaced_secret(name, self._namespace, {"stringData": values})

    def delete(self, name: str) -> None:
        try:
            self._core.delete_namespaced_secret(name, self._namespace)
        except client.ApiException as error:
            if error.status != 404:
                raise


def refused(chain: Chain, name: str, text: str) -> None:
    """Wait until the adapter tells that access is denied, in this one line."""

    def told() -> bool:
        found = describe(
            find_binary("kubectl"), chain.kubeconfig, chain.namespace, "loraadapter", name
        )
        return found.tells("Ready", "AccessDenied", text)

    eventually(told, what=f"{text!r}: {chain.full_condition(name, 'Ready')}")


def s3_source(server: S3Server, secret: str) -> dict[str, Any]:
    address = {"bucket": server.bucket, "prefix": secret, "endpoint": server.endpoint}
    return {
        "s3": {**address, "pathStyle": True, "region": "us-east-1"},
        "credentialsSecretRef": {"name": secret},
        "pollIntervalSeconds": 1,
    }


def told_nowhere(chain: Chain, *values: str) -> None:
    """Assert that no status, no Event and no log holds one of the values."""
    said = [file.read_text() for file in chain.stack.logs.iterdir()]
    said += [
        str(event.to_dict()) for event in chain.core.list_namespaced_event(chain.namespace).items
    ]
    said += [str(chain.get(item["metadata"]["name"])) for item in chain.adapters()]
    assert not [text for text in said for value in values if value in text]


def test_a_mended_secret_is_used_at_once_however_long_the_pause_would_be(chain: Chain) -> None:
    server, keys = chain.stack.start_s3(), Keys(chain)
    right = {"accessKeyID": server.access_key, "secretAccessKey": server.secret_key}
    label = f"Secret {chain.namespace}"
    keys.put("wrong", **{**right, "secretAccessKey": WRONG})
    keys.put("half", accessKeyID=server.access_key)
    for name in ("wrong", "half", "later"):
        server.upload(CASES / "d01-plain-bf16", name)
        chain.adapter(name, source=s3_source(server, name))
    refused(chain, "wrong", f"the credentials of {label}/wrong were refused")
    refused(chain, "half", f"{label}/half lacks key secretAccessKey")
    refused(chain, "later", f"{label}/later not found")

    keys.mend("wrong", secretAccessKey=server.secret_key)
    keys.mend("half", secretAccessKey=server.secret_key)
    keys.put("later", **right)
    for name in ("wrong", "half", "later"):
        eventually(lambda name=name: chain.ready(name), what=name)

    # Taken away while it is served: it stays served, and the line names the Secret.
    keys.delete("later")
    gone = f"the content is on all engines; the source now: {label}/later not found"
    eventually(lambda: chain.full_condition("later", "SourceResolved")["message"] == gone)
    assert chain.ready("later")
    first = chain.status("later")["digest"]
    server.upload(CASES / "d02-all-fp32", "later")
    keys.put("later", **right)
    eventually(lambda: chain.ready("later", first))
    told_nowhere(chain, WRONG, server.secret_key)


def test_a_wrong_token_is_tried_once_and_never_told(chain: Chain) -> None:
    keys = Keys(chain)
    with WebServer().running() as web:
        url = web.put("/sql", CASES / "d01-plain-bf16")
        web.tokens["/sql"] = RIGHT
        keys.put("token", token=WRONG)
        chain.adapter(
            "sql", source={"http": {"url": url}, "credentialsSecretRef": {"name": "token"}}
        )
        line = f"401 from {url}: Secret {chain.namespace}/token key token was sent"
        refused(chain, "sql", line)
        asked = len(web.requests)
        keys.put("unrelated", token=WRONG)
        chain.adapter("other")
        eventually(lambda: chain.ready("other"))
        eventually(lambda: chain.status("pool", "enginepools")["engines"][0]["loaded"] == 1)
        chain.pods.api.patch_namespaced_pod(
            "engine-0", chain.namespace, {"metadata": {"labels": {"seen": "yes"}}}
        )
        chain.adapter("another")
        eventually(lambda: chain.ready("another"))
        assert len(web.requests) == asked, "nothing has changed for it"
        keys.mend("token", token=f"{WRONG}-still")
        eventually(lambda: len(web.requests) > asked)
        refused(chain, "sql", line)
        keys.mend("token", token=RIGHT)
        eventually(lambda: chain.ready("sql"))
    assert chain.events("sql").count("AccessDenied") == 1, "SourceResolved and Ready say the same"
    told_nowhere(chain, WRONG, RIGHT)
