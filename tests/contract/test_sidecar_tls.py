"""Mutual TLS: who has no certificate of the fleet's authority gets nothing, who has one only what
its name allows."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import httpx
import pytest
from certificates import FUTURE, OPERATOR, PAST, Authority, MountedSecret
from lorafleet import frames
from lorafleet.certificates import CertificateFiles, Certificates, expires_at
from lorafleet.errors import EngineUnreachable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.certificate_series import CertificateSeries
from lorafleet_operator.transfer.client import SidecarClient, Tls
from lorafleet_sidecar.callers import Callers
from prometheus_client.parser import text_string_to_metric_families
from sidecar_rig import Rig
from staging_builders import source_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SERVICE = "/lorafleet.v1alpha1.SidecarService/"
POOL = "demo.engines.lorafleet"
POD = (("lorafleet-pod-uid", "pod-1"),)
FLEET = Authority("fleet")
Pair = tuple[bytes, bytes]


@pytest.fixture
def secret(volume: Path) -> MountedSecret:
    return MountedSecret(volume / "tls", FLEET.files("sidecar", POOL))


@pytest.fixture
async def rig(volume: Path, secret: MountedSecret) -> AsyncIterator[Rig]:
    async with Rig(volume, tls_dir=secret.folder, peer_name=POOL) as running:
        yield running


def channel(port: int, pair: Pair | None, root: Authority = FLEET) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(root.certificate, *(pair or (None, None)))
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


async def ask(rig: Rig, pair: Pair | None, root: Authority = FLEET) -> pb.Inventory:
    async with channel(rig.sidecar.port, pair, root) as connected:
        method: Any = connected.unary_unary(SERVICE + "ListAdapters")
        answer = await method(pb.ListAdaptersRequest().SerializeToString(), timeout=60)
    return pb.ListAdaptersResponse.FromString(answer).inventory


async def test_the_operator_is_let_in(rig: Rig) -> None:
    assert (await ask(rig, FLEET.issue("anything", OPERATOR))).pod_uid == "pod-1"


STRANGERS: dict[str, Callable[[], Pair | None]] = {
    "no certificate": lambda: None,
    "another authority": lambda: Authority("stranger").issue("operator", OPERATOR),
    "another authority of the same name": lambda: Authority("fleet").issue("operator", OPERATOR),
    "expired": lambda: FLEET.issue("operator", OPERATOR, valid=PAST),
    "not yet valid": lambda: FLEET.issue("operator", OPERATOR, valid=FUTURE),
}


@pytest.mark.parametrize("who", STRANGERS)
async def test_who_is_not_of_the_fleet_makes_no_connection(rig: Rig, who: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(rig, STRANGERS[who]())
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


METHODS = {
    "StageAdapter": "stream_stream",
    "SendChunks": "stream_unary",
    "LoadAdapter": "unary_unary",
    "UnloadAdapter": "unary_unary",
    "RestartEngine": "unary_unary",
    "RefuseNames": "unary_unary",
    "SendAdapter": "unary_unary",
    "ListAdapters": "unary_unary",
    "GetEngineProfile": "unary_unary",
    "WatchEngine": "unary_stream",
}
OTHERS = {
    "/grpc.health.v1.Health/Check": "unary_unary",
    "/grpc.health.v1.Health/Watch": "unary_stream",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream_stream",
}
EVERY = {SERVICE + name: kind for name, kind in METHODS.items()} | OTHERS
OF_PEERS = {SERVICE + "StageAdapter", "/grpc.health.v1.Health/Check"}


async def outcome(connected: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """Call `method` with one empty message; return how it ended, or OK once it answers."""
    kind = EVERY[method]
    call: Any = getattr(connected, kind)(method)
    streams = kind.startswith("stream")
    running = call(iter([b""]) if streams else b"", timeout=60, metadata=POD)
    try:
        if kind.endswith("stream"):
            await running.read()
            if not running.done():
                running.cancel()
                return grpc.StatusCode.OK, ""
        else:
            await running
    except grpc.aio.AioRpcError:
        pass
    return await running.code(), await running.details() or ""


def test_every_method_of_the_service_is_asked_about() -> None:
    described = pb.DESCRIPTOR.services_by_name["SidecarService"].methods
    assert {method.name for method in described} == set(METHODS)


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ((OPERATOR,), set(EVERY)),
        ((POOL,), OF_PEERS),
        (("team-b.engines.lorafleet",), set()),
        ((), set()),
        ((f"x.{OPERATOR}", f"{OPERATOR}.evil", f"*.{POOL}"), set()),
    ],
    ids=["operator", "engine of the pool", "engine of another pool", "no name", "similar names"],
)
async def test_a_name_in_the_certificate_says_what_its_bearer_may_call(
    rig: Rig, names: tuple[str, ...], allowed: set[str]
) -> None:
    async with channel(rig.sidecar.port, FLEET.issue(OPERATOR, *names)) as connected:
        refused = {}
        for method in EVERY:
            code, line = await outcome(connected, method)
            if code == grpc.StatusCode.PERMISSION_DENIED:
                refused[method] = line
    assert set(refused) == set(EVERY) - allowed
    for line in refused.values():
        assert f"is for {OPERATOR}" in line
        assert line.endswith("names " + ", ".join(["localhost", *names]))
    assert rig.engine.loads == []


async def test_receivers_take_chunks_of_the_operator_alone(
    volume: Path, secret: MountedSecret
) -> None:
    codes = {}
    async with Rig(volume, tls_dir=secret.folder, peer_name=POOL, receivers=1) as rig:
        [port] = rig.sidecar._transfer.receivers.ports()  # type: ignore[union-attr]
        for name in (OPERATOR, POOL):
            async with channel(port, FLEET.issue("x", name)) as connected:
                codes[name], _ = await outcome(connected, SERVICE + "SendChunks")
    assert codes == {
        OPERATOR: grpc.StatusCode.ABORTED,  # an empty message is no chunk
        POOL: grpc.StatusCode.PERMISSION_DENIED,
    }


@pytest.mark.parametrize("metadata", [None, (("lorafleet-pod-uid", "pod-2"),)])
async def test_an_order_names_the_pod_that_it_is_for(rig: Rig, metadata: Any) -> None:
    orders = ["LoadAdapter", "UnloadAdapter", "RestartEngine", "RefuseNames", "SendAdapter"]
    async with channel(rig.sidecar.port, FLEET.issue("operator", OPERATOR)) as connected:
        for name in orders:
            call: Any = connected.unary_unary(SERVICE + name)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call(b"", timeout=60, metadata=metadata)
            assert "this sidecar is pod uid pod-1, the call is for " in str(failure.value.details())


async def test_a_neighbour_may_pass_on_but_not_to_another_pod(rig: Rig) -> None:
    adapter = source_adapter(1)
    manifest = adapter.manifest(pod_uid="pod-2")
    async with channel(rig.sidecar.port, FLEET.issue("neighbour", POOL)) as connected:
        method: Any = connected.stream_stream(SERVICE + "StageAdapter")
        call = method(iter([frames.encode_manifest(manifest.SerializeToString())]), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError, match="the transfer is for pod-2"):
            await call.read()


def test_a_connection_that_outlives_its_certificate_begins_no_call() -> None:
    callers = Callers(OPERATOR, POOL)
    for valid, problem in ((PAST, "expired since the connection was made"), (None, "")):
        pair = FLEET.issue("x", OPERATOR, **({"valid": valid} if valid else {}))
        caller = {"peer_dns": [OPERATOR.encode()], "x509_pem_cert": [pair[1]]}
        assert problem in callers.problem(SERVICE + "LoadAdapter", caller)
        assert bool(problem) == bool(callers.problem(SERVICE + "LoadAdapter", caller))


async def test_the_operator_speaks_to_no_sidecar_of_another_name(rig: Rig) -> None:
    """The address may have gone to a pod of another namespace, whose certificate is as good."""
    operator = FLEET.files("operator")
    own = Certificates(operator["ca.crt"], operator["tls.key"], operator["tls.crt"], 0, 0, 0)
    for name, spoken in ((POOL, True), ("team-b.engines.lorafleet", False)):
        client = SidecarClient("127.0.0.1", rig.sidecar.port, Tls(own, name), pod_uid="pod-1")
        if spoken:
            assert (await client.inventory(60)).pod_uid == "pod-1"
        else:
            with pytest.raises(EngineUnreachable):
                await client.inventory(60)
        await client.close()


async def test_both_sides_tell_when_their_certificates_expire(
    rig: Rig, secret: MountedSecret
) -> None:
    async def figures() -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False) as web:
            text = (await web.get(f"http://127.0.0.1:{rig.sidecar.metrics_port}/metrics")).text
        operator = CertificateSeries()
        operator.files = CertificateFiles(secret.folder)
        families = [*text_string_to_metric_families(text), *operator.collect()]
        return {
            sample.name + sample.labels.get("certificate", ""): sample.value
            for family in families
            for sample in family.samples
            if "_certificate_" in sample.name
        }

    own = expires_at((secret.folder / "tls.crt").read_bytes())
    expected = {
        f"lorafleet_{side}_certificate_{what}": value
        for side in ("sidecar", "operator")
        for what, value in (
            ("expiry_timestamp_secondsown", own),
            ("expiry_timestamp_secondsauthority", expires_at(FLEET.certificate)),
            ("files_refused", 0),
        )
    }
    assert await figures() == expected
    refused = FLEET.files("sidecar") | {"tls.key": b"nonsense"}
    started = CertificateFiles(secret.folder)
    secret.swap(refused)
    started.current()
    assert started.problem
    async with httpx.AsyncClient(trust_env=False) as web:
        text = (await web.get(f"http://127.0.0.1:{rig.sidecar.metrics_port}/metrics")).text
    assert "lorafleet_sidecar_certificate_files_refused 1.0" in text
    [kept] = re.findall(r'_expiry_timestamp_seconds{certificate="own"} (\S+)', text)
    assert float(kept) == own, "the earlier ones are used"


# What is no TLS at all, or not the right one


async def test_a_plaintext_client_is_refused(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.stub.ListAdapters(pb.ListAdaptersRequest(), timeout=60)


def tls_client(pair: Pair, protocols: list[str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=FLEET.certificate.decode())
    context.set_alpn_protocols(protocols)
    with tempfile.NamedTemporaryFile() as both:
        both.write(pair[0] + pair[1])
        both.flush()
        context.load_cert_chain(both.name)
    return context


def talk(port: int, context: ssl.SSLContext | None, request: bytes) -> bytes:
    """Return the first that the port answers. Raises OSError when it refuses."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        if context is None:
            return exchange(plain, request)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            return exchange(connection, request)


def exchange(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return connection.recv(65536)


HTTP1 = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("protocols", [["http/1.1"], ["h2"], []])
async def test_http_1_gets_no_answer_of_http_1(rig: Rig, protocols: list[str]) -> None:
    context = tls_client(FLEET.issue("operator", OPERATOR), protocols)
    try:
        answer = await asyncio.to_thread(talk, rig.sidecar.port, context, HTTP1)
    except OSError:  # ssl's among them: the port hung up
        answer = b""
    assert not answer.startswith(b"HTTP/1")
    assert b"lorafleet" not in answer


async def test_plaintext_gets_no_answer(rig: Rig) -> None:
    for request in (HTTP1, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)):
        try:
            answer = await asyncio.to_thread(talk, rig.sidecar.port, None, request)
        except OSError:
            answer = b""
        assert b"lorafleet" not in answer
        assert not answer.startswith(b"HTTP/1")


@pytest.mark.parametrize(
    ("version", "ciphers", "taken"),
    [
        (ssl.TLSVersion.TLSv1_3, "", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AESGCM", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AES:!AESGCM:!AESCCM", False),
        (ssl.TLSVersion.TLSv1_2, "NULL:eNULL:@SECLEVEL=0", False),
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", False),
        (ssl.TLSVersion.TLSv1, "ALL:@SECLEVEL=0", False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*TLSv1:DeprecationWarning")
async def test_old_versions_and_weak_ciphers_are_refused(
    rig: Rig, version: ssl.TLSVersion, ciphers: str, taken: bool
) -> None:
    context = tls_client(FLEET.issue("operator", OPERATOR), ["h2"])
    if ciphers:
        context.set_ciphers(ciphers)
    context.minimum_version = context.maximum_version = version
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    try:
        answer = await asyncio.to_thread(talk, rig.sidecar.port, context, preface)
    except OSError:
        answer = b""
    assert bool(answer) is taken
