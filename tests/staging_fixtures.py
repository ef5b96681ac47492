"""Fixtures and questions that the tests of broken transfers share (tests/hostile)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from staging_client import StageCall
from staging_server import LIMIT, Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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


def open_files(volume: Path) -> int:
    """How many files of the volume this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
            count += str(volume) in str(link.readlink())
    return count


async def nothing_left(sidecar: Serving, files: int) -> None:
    """Wait until no transfer has space and no more than `files` files are open: a client hears first."""
    volume = sidecar.store.volume
    async with asyncio.timeout(60):
        while reserved(sidecar) or open_files(volume) != files:
            await asyncio.sleep(0.05)
    assert list((volume / "staging").iterdir()) == []


def reserved(sidecar: Serving) -> int:
    usage = sidecar.store.usage()
    assert usage.used + usage.reserved == sum(e.size for e in sidecar.store.extents())
    assert usage.limit == LIMIT
    return usage.reserved
