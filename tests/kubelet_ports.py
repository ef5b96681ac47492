"""What a kubelet does for `kubectl port-forward`, and nothing else: SPDY/3.1 below the API server.

with KubeletPorts(kube, directory, "node", {9443: port}) as kubelet:   # found by the Node object
    ...                                          # port 9443 of its pods leads to 127.0.0.1:port
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from localpki import write_pki

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kube_rest import KubeRest

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING = 1, 2, 3, 6
_CONTROL: Final = 0x80030000
_FIN: Final = 1
# Both sides of a connection compress headers beginning with these words (SPDY/3, 2.6.10.1).
_WORDS: Final = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie
keep-alive origin
"""
_REST: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
    "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 "
    "Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service "
    "UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, "
    "Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,"
    "sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = (
    b"".join(
        struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()
    )
    + _REST.encode()
)


class KubeletPorts:
    """A node whose kubelet forwards ports; `forwarded` has namespace and pod of each forward."""

    def __init__(
        self, kube: KubeRest, directory: Path, node: str, ports: Mapping[int, int]
    ) -> None:
        self._kube, self._node, self._ports = kube, node, ports
        write_pki(directory / "kubelet")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = (directory / "kubelet" / f"server.{part}" for part in ("crt", "key"))
        self._context.load_cert_chain(*pair)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[_Forward] = set()
        self.forwarded: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result(30)
        port = self._server.sockets[0].getsockname()[1]
        self._kube.create("/api/v1/nodes", {"metadata": {"name": self._node}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self._kube.merge(f"/api/v1/nodes/{self._node}/status", {"status": status})
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._kube.delete(f"/api/v1/nodes/{self._node}")

    def cut(self) -> None:
        """Break what is being forwarded, as the end of a pod does."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(30)

    async def _cut(self) -> None:
        for each in self._open:
            each.break_off()

    async def _end(self) -> None:
        self._server.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, _, namespace, pod = head.split()[1].partition("?")[0].split("/")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            b"X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
        )
        self.forwarded.append((namespace, pod))
        forward = _Forward(reader, writer, self._ports)
        self._open.add(forward)
        try:
            await forward.run()
        finally:
            self._open.discard(forward)


class _Forward:
    """The streams of one connection: for each connection that is forwarded one of errors, one of data."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ports: Mapping[int, int],
    ) -> None:
        self._reader, self._writer, self._ports = reader, writer, ports
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)
        self._pack = zlib.compressobj(zdict=DICTIONARY)
        self._errors: dict[bytes, int] = {}
        self._targets: dict[int, asyncio.StreamWriter] = {}
        self._backs: set[asyncio.Task[None]] = set()

    def break_off(self) -> None:
        """End without a word."""
        self._writer.transport.abort()

    async def run(self) -> None:
        """Serve until the other side is gone."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    first, second = struct.unpack(">II", await self._reader.readexactly(8))
                    body = await self._reader.readexactly(second & 0xFFFFFF)
                    await self._take(first, second >> 24, body)
        finally:
            for target in self._targets.values():
                target.transport.abort()
            self._writer.transport.abort()

    async def _take(self, first: int, flags: int, body: bytes) -> None:
        if not first >> 31:
            target = self._targets.get(first)
            if target is not None:
                target.write(body)
                await target.drain()
                if flags & _FIN:
                    target.write_eof()
            return
        kind, stream = first & 0xFFFF, int.from_bytes(body[:4])
        if kind == _PING:
            self._send(_CONTROL | _PING, 0, body)
        elif kind == _RST_STREAM and stream in self._targets:
            self._targets.pop(stream).transport.abort()
        elif kind == _SYN_STREAM:
            await self._opened(stream, self._headers(self._unpack.decompress(body[10:])))

    async def _opened(self, stream: int, headers: dict[bytes, bytes]) -> None:
        none = self._pack.compress(bytes(4)) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        self._send(_CONTROL | _SYN_REPLY, 0, stream.to_bytes(4) + none)
        if headers[b"streamtype"] == b"error":
            self._errors[headers[b"requestid"]] = stream
            return
        port = self._ports[int(headers[b"port"])]
        reader, self._targets[stream] = await asyncio.open_connection("127.0.0.1", port)
        error = self._errors.pop(headers[b"requestid"])
        back = asyncio.create_task(self._back(reader, stream, error))
        self._backs.add(back)
        back.add_done_callback(self._backs.discard)

    @staticmethod
    def _headers(block: bytes) -> dict[bytes, bytes]:
        found, at = [], 4
        while at < len(block):
            length = int.from_bytes(block[at : at + 4])
            found.append(block[at + 4 : at + 4 + length])
            at += 4 + length
        return dict(zip(found[::2], found[1::2], strict=True))

    async def _back(self, reader: asyncio.StreamReader, stream: int, error: int) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self._send(stream, 0, data)
                await self._writer.drain()
            self._send(stream, _FIN, b"")
            self._send(error, _FIN, b"")

    def _send(self, first: int, flags: int, body: bytes) -> None:
        self._writer.write(struct.pack(">II", first, flags << 24 | len(body)) + body)
