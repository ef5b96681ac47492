"""Fixtures and questions that the tests of broken transfers share (tests/hostile)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
import pytest
from staging_client import StageCall
from staging_server import LIMIT, Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet.v1alpha1 import sidecar_pb2 as pb

EXTENT = 2 << 20  # what each small adapter takes


@pytest.fixture
async def sidecar(volume: Path) -> AsyncIterator[Serving]:
    async with serving(volume) as running:
        yield running


async def failure(call: StageCall) -> grpc.aio.AioRpcError:
    """Return the error that the call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.answer()
    return caught.value


async def refusal(sidecar: Serving, manifest: pb.AdapterManifest) -> grpc.aio.AioRpcError:
    """Return the error that `manifest` is answered with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await StageCall(sidecar.channel).manifest(manifest)
    return caught.value


def reserved(sidecar: Serving) -> int:
    usage = sidecar.store.usage()
    assert usage.used + usage.reserved == sum(e.size for e in sidecar.store.extents())
    assert usage.limit == LIMIT
    return usage.reserved
