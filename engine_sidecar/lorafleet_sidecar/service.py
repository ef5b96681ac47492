"""The gRPC servicer: request -> agent -> response. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from lorafleet.grpc_errors import answers_errors
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc

from lorafleet_sidecar.desired import GPU, SHARED, LoadWish, Probe
from lorafleet_sidecar.ending import end_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc.aio

    from lorafleet_sidecar.agent import Agent
    from lorafleet_sidecar.first_requests import FirstRequests

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SidecarService"].full_name
# A burst of changes becomes one message: watchers hear at most this often.
_WATCH_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 2.0

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]


class SidecarServicer(pb_grpc.SidecarServiceServicer):
    """All methods but StageAdapter and SendChunks, which are `transfer_service`'s."""

    def __init__(
        self, agent: Agent, first_requests: FirstRequests, default_drain_seconds: float
    ) -> None:
        self._agent = agent
        self._first_requests = first_requests
        self._default_drain_seconds = default_drain_seconds

    @answers_errors
    async def LoadAdapter(  # noqa: N802 - gRPC's name
        self, request: pb.LoadAdapterRequest, context: _Context
    ) -> pb.LoadAdapterResponse:
        """Load a staged revision; see `Agent.load`."""
        loaded = await self._agent.load(
            LoadWish(
                adapter=request.adapter,
                served_name=request.served_name,
                digest=request.digest,
                loader=request.loader or "direct",
                residency=request.residency or (GPU if request.pinned else SHARED),
                publish=request.publish,
                drain_seconds=request.drain_timeout_seconds or self._default_drain_seconds,
                keep=tuple(request.keep),
                free_others=request.free_others,
                abort_seconds=_abort_seconds(request),
                probe=_probe(request),
                two_phase=request.two_phase,
            )
        )
        return pb.LoadAdapterResponse(loaded=loaded)

    @answers_errors
    async def UnloadAdapter(  # noqa: N802
        self, request: pb.UnloadAdapterRequest, context: _Context
    ) -> pb.UnloadAdapterResponse:
        """Unload a served name; see `Agent.unload`."""
        await self._agent.unload(
            request.adapter,
            request.served_name,
            drain_seconds=request.drain_timeout_seconds or self._default_drain_seconds,
            drop_staged=request.drop_staged,
            abort_seconds=_abort_seconds(request),
        )
        return pb.UnloadAdapterResponse()

    @answers_errors
    async def RestartEngine(  # noqa: N802
        self, request: pb.RestartEngineRequest, context: _Context
    ) -> pb.RestartEngineResponse:
        """End the engine's vLLM; see `end_engine`."""
        await end_engine(self._agent, request.engine_instance, force=request.force)
        return pb.RestartEngineResponse()

    @answers_errors
    async def RefuseNames(  # noqa: N802
        self, request: pb.RefuseNamesRequest, context: _Context
    ) -> pb.RefuseNamesResponse:
        """Answer requests that wait for names which will not be served here."""
        self._first_requests.refuse(request.names)
        return pb.RefuseNamesResponse()

    @answers_errors
    async def ListAdapters(  # noqa: N802
        self, request: pb.ListAdaptersRequest, context: _Context
    ) -> pb.ListAdaptersResponse:
        """Return the inventory after a fresh look, or the last one while the engine is busy."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._agent.look()
        return pb.ListAdaptersResponse(inventory=self._agent.board.current)

    @answers_errors
    async def GetEngineProfile(  # noqa: N802
        self, request: pb.GetEngineProfileRequest, context: _Context
    ) -> pb.GetEngineProfileResponse:
        """Return the newest profile of the engine."""
        return pb.GetEngineProfileResponse(profile_json=self._agent.profiles.get().to_json())

    async def WatchEngine(  # noqa: N802
        self, request: pb.WatchEngineRequest, context: _Context
    ) -> AsyncIterator[pb.WatchEngineResponse]:
        """Stream the inventory now and after each change."""
        with self._agent.board.watched():
            async for inventory in self._agent.board.watch():
                yield pb.WatchEngineResponse(inventory=inventory)
                await asyncio.sleep(_WATCH_PAUSE_SECONDS)


def _abort_seconds(request: pb.LoadAdapterRequest | pb.UnloadAdapterRequest) -> int | None:
    return request.abort_seconds if request.HasField("abort_seconds") else None


def _probe(request: pb.LoadAdapterRequest) -> Probe | None:
    asked = request.probe
    if not request.HasField("probe"):
        return None
    return Probe(asked.prompt, asked.expect, asked.max_tokens or 1)
