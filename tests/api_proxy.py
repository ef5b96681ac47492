"""A proxy before a real API server, which says in watches what a server says when etcd is in trouble."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import aiohttp
from aiohttp import web
from kubernetes import config

if TYPE_CHECKING:
    from pathlib import Path

_PASSED_ON = ("Accept", "Content-Type")


def error_event(code: int, reason: str, message: str) -> bytes:
    """Return the line with which an API server ends a watch."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    body |= {"code": code, "reason": reason, "message": message}
    return json.dumps({"type": "ERROR", "object": body}).encode() + b"\n"


class ApiProxy:
    """Plain HTTP on loopback. Clients connect by the kubeconfig that `write_kubeconfig` writes.

    While `last_words` are set, a watch that begins gets them at once and ends, as do all that are
    open when `break_watches` is called.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.last_words = b""
        self.open: Counter[str] = Counter()
        """Watches that go on, by path."""
        self.broken: Counter[str] = Counter()
        """Watches that have ended with last words, by path."""
        self.lists: Counter[str] = Counter()
        """Lists that were read, by path."""
        self._kubeconfig = kubeconfig
        self._break = asyncio.Event()

    async def __aenter__(self) -> Self:
        given = config.new_client_from_config(str(self._kubeconfig)).configuration
        connector = aiohttp.TCPConnector(
            ssl=ssl.create_default_context(cafile=given.ssl_ca_cert), limit=0
        )
        headers = {each["key"]: each["value"] for each in given.auth_settings().values()}
        self._api = aiohttp.ClientSession(
            given.host, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout()
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._api.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig of this proxy; return its path."""
        host, port = self._runner.addresses[0][:2]
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "x", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "x", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        return path

    def break_watches(self, last_words: bytes) -> None:
        """End the watches that are open, and each that begins until `mend` is called."""
        self.last_words = last_words
        self._break.set()
        self._break = asyncio.Event()

    def mend(self) -> None:
        """Let watches go on that begin from now on."""
        self.last_words = b""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        watch = "watch" in request.query
        async with self._api.request(
            request.method, request.rel_url, data=await request.read() or None, headers=headers
        ) as answer:
            if request.method == "GET" and not watch:
                self.lists[request.path] += 1
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.content_type}
            )
            await response.prepare(request)
            if watch and answer.status == 200:
                await self._pass_on(request.path, answer, response)
            else:
                await response.write(await answer.read())
            return response

    async def _pass_on(
        self, place: str, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        async def events() -> None:
            with suppress(aiohttp.ClientError, ConnectionError):
                async for line in answer.content:
                    await response.write(line)

        self.open[place] += 1
        reading = asyncio.create_task(events())
        breaking = asyncio.create_task(self._break.wait())
        try:
            if not self.last_words:
                await asyncio.wait((reading, breaking), return_when=asyncio.FIRST_COMPLETED)
            if self.last_words:
                await response.write(self.last_words)
                self.broken[place] += 1
        finally:
            self.open[place] -= 1
            for task in (reading, breaking):
                task.cancel()
            await asyncio.gather(reading, breaking, return_exceptions=True)
