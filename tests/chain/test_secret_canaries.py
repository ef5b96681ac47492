"""Every secret of a fleet is a canary here: after successes and failures none is found anywhere else.

Operator and sidecar speak mutual TLS and log all that they and their libraries can (DEBUG).
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from certificates import Authority
from kube_rest import KubeRest
from operator_chain import CASES, Chain
from waiting import eventually
from web_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = ("SourceNotFound", "AccessDenied", "SourceUnavailable")
pytestmark = [pytest.mark.cluster, pytest.mark.chain]
KINDS = (
    ("", "v1", "events"),
    ("", "v1", "services"),
    ("", "v1", "pods"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("coordination.k8s.io", "v1", "leases"),
    ("lorafleet.dev", "v1alpha1", "loraadapters"),
    ("lorafleet.dev", "v1alpha1", "enginepools"),
)


class Canaries:
    """Values that nothing but their owners may hold, in every form in which they could be told."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def new(self, what: str) -> str:
        self.values[what] = f"canary-{secrets.token_hex(12)}/+{what}"
        return self.values[what]

    def told(self, text: bytes) -> list[str]:
        """Return which of them stand in the text: as they are, quoted, or in base64."""
        found = []
        for what, value in self.values.items():
            raw = value.encode()
            forms = {raw, quote(value, safe="").encode(), json.dumps(value)[1:-1].encode()}
            # base64 of the middle, at each of the three places where it can begin in a longer text
            forms |= {base64.b64encode(raw[at:])[4:36] for at in range(3)}
            if any(form in text for form in forms):
                found.append(what)
        return found


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def content_of(file: Path) -> bytes:
    """Return what is in the file, nothing when it or its process is gone meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return file.read_bytes()
    return b""


def whereabouts(chain: Chain, temporary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every place where something of the fleet is told or kept, with its text."""
    for log in chain.stack.logs.iterdir():
        if log.stem not in ("operator", "engine-0-sidecar"):
            continue  # an engine and a store, which have their keys from us
        yield f"log {log.name}", log.read_bytes()
    with KubeRest(chain.kubeconfig) as kube:
        for group, version, plural in KINDS:
            path = f"/api/{version}" if not group else f"/apis/{group}/{version}"
            listed = kube.get(f"{path}/namespaces/{chain.namespace}/{plural}")
            yield plural, json.dumps(listed).encode()
    assert chain.operator is not None
    yield (
        "operator's metrics",
        httpx.get(chain.operator.metrics_url, trust_env=False, timeout=60).content,
    )
    processes = [psutil.Process(chain.operator.process.pid)]
    for name, sidecar in chain.sidecars.items():
        yield (
            f"metrics of {name}",
            httpx.get(sidecar.metrics_url, trust_env=False, timeout=60).content,
        )
        processes.append(psutil.Process(sidecar.process.pid))
        for file in chain.engines[name].volume.rglob("*"):
            if file.is_file() and file.name != "arena":
                yield f"volume of {name}: {file.name}", content_of(file)
    for process in processes:
        for each in (process, *process.children(recursive=True)):
            for what in ("cmdline", "environ"):
                yield f"{what} of {each.pid}", content_of(Path(f"/proc/{each.pid}/{what}"))
    for file in temporary.rglob("*"):
        if file.is_file():
            yield f"temporary file {file}", content_of(file)


def test_no_secret_is_found_outside_of_its_place(
    chain: Chain, canaries: Canaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    authority = Authority("fleet")
    folders = {
        "operator": ("operator",),
        "sidecar": ("sidecar", f"{chain.namespace}.engines.lorafleet"),
    }
    for folder, names in folders.items():
        authority.write(tmp_path / folder, *names)
        key = (tmp_path / folder / "tls.key").read_text().splitlines()
        canaries.values[f"{folder}'s key"] = key[1]
    api_key = canaries.new("engine")
    (tmp_path / "api-key").write_text(api_key)
    chain.start_engine(
        "engine-0", 0, "--api-key", api_key,
        LORAFLEET_ENGINE_API_KEY_FILE=str(tmp_path / "api-key"),
        LORAFLEET_TLS_DIR=str(tmp_path / "sidecar"),
        LORAFLEET_RECEIVERS="1",
    )  # fmt: skip
    chain.pool()
    chain.start_operator(
        LORAFLEET_TLS_DIR=str(tmp_path / "operator"),
        LORAFLEET_LOG_LEVEL="DEBUG",
        LORAFLEET_BACKOFF_SECONDS="0.5",
    )
    server = chain.stack.start_s3()
    canaries.values["S3"] = server.secret_key
    server.upload(CASES / "d01-plain-bf16", "right")

    def secret(name: str, **values: str) -> dict[str, str]:
        chain.core.create_namespaced_secret(
            chain.namespace, {"metadata": {"name": name}, "stringData": values}
        )
        return {"name": name}

    def s3(name: str, key: str, prefix: str) -> dict[str, Any]:
        given = secret(name, accessKeyID=server.access_key, secretAccessKey=key)
        address = {"bucket": server.bucket, "prefix": prefix, "endpoint": server.endpoint}
        return {"s3": {**address, "pathStyle": True}, "credentialsSecretRef": given}

    with WebServer().running() as web:
        url = web.put("/sql", CASES / "d02-all-fp32")
        web.tokens["/sql"] = token = canaries.new("web")
        host = web.url.removeprefix("http://")
        sources: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "s3": (s3("s3", server.secret_key, "right"), ("Ready",)),
            "s3-wrong": (s3("s3-wrong", canaries.new("wrong S3"), "right"), ("AccessDenied",)),
            "s3-empty": (s3("s3-empty", server.secret_key, "nothing"), ("SourceNotFound",)),
            "web": ({"http": {"url": url}, "credentialsSecretRef": secret("web", token=token)}, ("Ready",)),
            "web-wrong": (
                {"http": {"url": url}, "credentialsSecretRef": secret("w", token=canaries.new("wrong web"))},
                ("AccessDenied",),
            ),
            "hub": (
                {
                    "huggingFace": {"repo": "team/sql", "endpoint": web.url},
                    "credentialsSecretRef": secret("hub", token=canaries.new("hub")),
                },
                FAILED,
            ),
            "oci": (
                {
                    "oci": {"reference": f"{host}/team/sql:v1", "plainHttp": True},
                    "credentialsSecretRef": secret("oci", username="u", password=canaries.new("oci")),
                },
                FAILED,
            ),
        }  # fmt: skip
        for name, (source, _) in sources.items():
            chain.adapter(name, source={**source, "pollIntervalSeconds": 1})
        for name, (_, reasons) in sources.items():
            eventually(
                lambda name=name, reasons=reasons: chain.condition(name, "Ready")[1] in reasons,
                what=f"{name}: {reasons}, {chain.full_condition(name, 'Ready')}",
            )
        # A key that the engine does not take any more: the sidecar reads it anew and fails.
        (tmp_path / "api-key").write_text(canaries.new("wrong engine"))
        assert len(canaries.values) == 10
        told = {
            place: found
            for place, text in whereabouts(chain, temporary)
            if (found := canaries.told(text))
        }
    assert told == {}
    # The test would see one: the operator's own environment holds this.
    environ = Path(f"/proc/{os.getpid()}/environ").read_bytes()
    canaries.values["control"] = next(e for e in environ.split(b"\0") if len(e) > 48).decode()
    assert canaries.told(environ) == ["control"]
