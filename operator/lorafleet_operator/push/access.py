"""Who may push and open safe points: Kubernetes says, and refusals are told as Events in the namespace."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from lorafleet.errors import AccessDenied, PathNotAllowed, SourceUnavailable
from lorafleet.push.connection import ADAPTER_KEY

from lorafleet_operator import metrics
from lorafleet_operator.api import names
from lorafleet_operator.cluster import reviews
from lorafleet_operator.cluster.writes import post_event
from lorafleet_operator.sources.bounds import checked_object_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from kubernetes.aio.client import ApiClient

_QUIET_SECONDS: Final = 60.0
_MOST: Final = 100
"""Events about refusals in that time: anybody can knock, and under any adapter's name."""
SAFE_POINT: Final = "safe point"
"""What is refused, in Events; else it is a push."""
_BEARER: Final = "bearer "
_REVIEWS: Final = 4
"""Questions to the API server at a time: strangers' may not keep the operator's own from it."""
_PATIENCE_SECONDS: Final = 20.0
_CALLER: ContextVar[reviews.Account] = ContextVar("caller")


class Doorkeeper:
    """Lets calls in by their tokens. `now`: a clock, seconds."""

    def __init__(self, api: ApiClient, audience: str, now: Callable[[], float]) -> None:
        self._api = api
        self._audience = audience
        self._now = now
        self._told: dict[tuple[str, str], float] = {}
        self._reviews = asyncio.Semaphore(_REVIEWS)

    async def identify(self, metadata: Mapping[str, str | bytes]) -> reviews.Account:
        """Return whose call it is, and remember it for as long as the call lasts.

        Raises AccessDenied, and SourceUnavailable when the API server does not say.
        """
        given = metadata.get("authorization", "")
        token = given[len(_BEARER) :].strip() if isinstance(given, str) else ""
        if not token or not given[: len(_BEARER)].lower() == _BEARER:
            raise AccessDenied("the call carries no token (authorization: Bearer ...)")
        async with self._asking():
            who = await reviews.account(self._api, token, self._audience)
        _CALLER.set(who)
        return who

    def caller(self) -> reviews.Account:
        """Return whose call this is, once it is known."""
        return _CALLER.get()

    async def admit(
        self,
        metadata: Mapping[str, str | bytes],
        verb: str,
        *,
        namespace: str,
        name: str,
        subresource: str = "",
        what: str = "push",
    ) -> reviews.Account:
        """Return whose call it is. Raises AccessDenied, which is told of as an Event, and
        SourceUnavailable when the API server does not say, PathNotAllowed for what is no name."""
        checked_object_name(namespace, "namespace")
        checked_object_name(name, "name")
        async with self._refusals_told(namespace, name, what):
            who = _CALLER.get(None) or await self.identify(metadata)
            async with self._asking():
                await reviews.check_access(
                    self._api, who, verb, namespace=namespace, name=name, subresource=subresource
                )
            return who

    async def may_create(self, who: reviews.Account, namespace: str, name: str) -> None:
        """Raise AccessDenied unless the account may create LoRAAdapters in the namespace."""
        async with self._refusals_told(namespace, name), self._asking():
            await reviews.check_access(self._api, who, "create", namespace=namespace, name=name)

    async def may_open(self, who: reviews.Account, namespace: str, name: str) -> None:
        """Raise AccessDenied unless the account may open safe points of the EnginePool."""
        told = self._refusals_told(namespace, name, SAFE_POINT, names.POOL_KIND)
        async with told, self._asking():
            await reviews.check_access(
                self._api,
                who,
                "create",
                namespace=namespace,
                resource=names.POOL_PLURAL,
                name=name,
                subresource="safepoint",
            )

    async def refused(self, metadata: Mapping[str, str | bytes], error: AccessDenied) -> None:
        """Tell of a call that was refused before it said anything but its metadata."""
        metrics.PUSHES_REFUSED.inc()
        namespace, _, name = str(metadata.get(ADAPTER_KEY, "")).partition("/")
        await self._tell(namespace, name, str(error))

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Wait for a turn to ask the API server, and for its answer, within a bound."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._reviews:
                yield
        except TimeoutError:
            raise SourceUnavailable(
                f"the API server did not say in {_PATIENCE_SECONDS:g} s who may push"
            ) from None

    @asynccontextmanager
    async def _refusals_told(
        self, namespace: str, name: str, what: str = "push", kind: str = names.ADAPTER_KIND
    ) -> AsyncIterator[None]:
        try:
            yield
        except AccessDenied as error:
            metrics.PUSHES_REFUSED.inc()
            await self._tell(namespace, name, str(error), what, kind)
            raise

    async def _tell(
        self,
        namespace: str,
        name: str,
        line: str,
        what: str = "push",
        kind: str = names.ADAPTER_KIND,
    ) -> None:
        """Post an Event, but not the same one again and again."""
        try:
            checked_object_name(namespace, "namespace")
            checked_object_name(name, "name")
        except PathNotAllowed:
            return
        now, about = self._now(), (namespace, line)
        self._told = {k: at for k, at in self._told.items() if now - at < _QUIET_SECONDS}
        if about in self._told or len(self._told) >= _MOST:
            return
        self._told[about] = now
        body = {"metadata": {"namespace": namespace, "name": name, "uid": ""}}
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await post_event(
                    self._api,
                    kind,
                    body,
                    type_="Warning",
                    reason="SafePointRefused" if what == SAFE_POINT else "PushRefused",
                    message=f"{what} of {name}: {line}",
                )
