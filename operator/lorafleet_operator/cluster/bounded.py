"""The client of the API server: few requests at a time, and writes only within a pass's term."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.request import getproxies_environment

from kubernetes.aio import client

from lorafleet_operator import term

_REQUESTS: Final = 16
"""Requests at a time: each connection's buffers take half a mebibyte."""


class BoundedClient(client.ApiClient):  # type: ignore[misc] # the library is not typed
    """A client whose requests wait for their turn here and not in the library's pool.

    So the last look at the term comes when a write is really sent, however many wait before it.
    """

    def __init__(self) -> None:
        shared = client.Configuration.get_default()
        shared.connection_pool_maxsize = _REQUESTS
        # Where nobody set a proxy: each request would ask one thread for it, and another one for a
        # password in ~/.netrc, which no API server takes.
        shared.client_session_kwargs = {"trust_env": bool(getproxies_environment())}
        super().__init__()
        self._turn = asyncio.Semaphore(_REQUESTS)

    async def call_api(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Send one request. Raises TermOver instead of a write that comes too late."""
        async with self._turn:
            if method != "GET":
                term.check()
            return await super().call_api(method, *args, **kwargs)
