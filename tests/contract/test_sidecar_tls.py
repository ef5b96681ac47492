"""Mutual TLS: who has no certificate of the fleet's authority gets nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from certificates import Authority
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from sidecar_rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def authority() -> Authority:
    return Authority("fleet")


@pytest.fixture
async def rig(volume: Path, authority: Authority) -> AsyncIterator[Rig]:
    folder = volume / "tls"
    authority.write(folder, "sidecar")
    async with Rig(volume, tls_dir=folder) as running:
        yield running


async def call(rig: Rig, root: Authority, client: tuple[bytes, bytes] | None) -> pb.Inventory:
    key, certificate = client or (None, None)
    credentials = grpc.ssl_channel_credentials(root.certificate, key, certificate)
    address = f"127.0.0.1:{rig.sidecar.port}"
    async with grpc.aio.secure_channel(address, credentials) as channel:
        stub = pb_grpc.SidecarServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.ListAdapters(pb.ListAdaptersRequest(), timeout=10)
        inventory: pb.Inventory = answer.inventory
        return inventory


async def test_a_client_of_the_fleets_authority_is_let_in(rig: Rig, authority: Authority) -> None:
    assert (await call(rig, authority, authority.issue("operator"))).pod_uid == "pod-1"


async def test_a_client_without_a_certificate_is_refused(rig: Rig, authority: Authority) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call(rig, authority, None)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_client_of_another_authority_is_refused(rig: Rig, authority: Authority) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call(rig, authority, Authority("stranger").issue("operator"))
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_plaintext_client_is_refused(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.stub.ListAdapters(pb.ListAdaptersRequest(), timeout=5)


async def test_a_rotated_certificate_is_used_for_the_next_connection(
    rig: Rig, volume: Path
) -> None:
    successor = Authority("fleet of next year")
    successor.write(volume / "tls", "sidecar")
    assert (await call(rig, successor, successor.issue("operator"))).pod_uid == "pod-1"
