"""Who may push: Kubernetes says, and refusals are told as Events in the namespace."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from lorafleet.errors import AccessDenied

from lorafleet_operator import metrics
from lorafleet_operator.api import names
from lorafleet_operator.cluster import reviews
from lorafleet_operator.cluster.writes import post_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from kubernetes.aio.client import ApiClient

_QUIET_SECONDS: Final = 60.0
_MOST: Final = 1000
_BEARER: Final = "bearer "


class Doorkeeper:
    """Lets calls in by their tokens. `now`: a clock, seconds."""

    def __init__(self, api: ApiClient, audience: str, now: Callable[[], float]) -> None:
        self._api = api
        self._audience = audience
        self._now = now
        self._told: dict[tuple[str, str], float] = {}

    async def admit(
        self,
        metadata: Mapping[str, str],
        verb: str,
        *,
        namespace: str,
        name: str,
        subresource: str = "",
    ) -> reviews.Account:
        """Return whose call it is. Raises AccessDenied, which is told of as an Event, and
        SourceUnavailable when the API server does not say."""
        async with self._refusals_told(namespace, name):
            given = metadata.get("authorization", "")
            token = given[len(_BEARER) :].strip()
            if not given.lower().startswith(_BEARER) or not token:
                raise AccessDenied("the call carries no token (authorization: Bearer ...)")
            who = await reviews.account(self._api, token, self._audience)
            await reviews.check_access(
                self._api, who, verb, namespace=namespace, name=name, subresource=subresource
            )
            return who

    async def may_create(self, who: reviews.Account, namespace: str, name: str) -> None:
        """Raise AccessDenied unless the account may create LoRAAdapters in the namespace."""
        async with self._refusals_told(namespace, name):
            await reviews.check_access(self._api, who, "create", namespace=namespace, name=name)

    @asynccontextmanager
    async def _refusals_told(self, namespace: str, name: str) -> AsyncIterator[None]:
        try:
            yield
        except AccessDenied as error:
            metrics.PUSHES_REFUSED.inc()
            await self._tell(namespace, name, str(error))
            raise

    async def _tell(self, namespace: str, name: str, line: str) -> None:
        """Post an Event, but not the same one again and again: anybody can knock."""
        now, about = self._now(), (namespace, line)
        if now - self._told.get(about, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        while len(self._told) >= _MOST:
            del self._told[next(iter(self._told))]
        self._told[about] = now
        body = {"metadata": {"namespace": namespace, "name": name, "uid": ""}}
        await post_event(
            self._api,
            names.ADAPTER_KIND,
            body,
            type_="Warning",
            reason="PushRefused",
            message=f"push of {name}: {line}",
        )
