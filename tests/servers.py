"""Real servers that source tests read from: S3 with signatures, and a web server that lies.

`start_s3` runs versitygw on a folder (a bucket is a folder, a key a file). `LyingServer` speaks
HTTP/1.1 by hand, so that every way of answering wrongly can be had.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from processes import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

VERSITYGW = Path(
    os.environ.get("VERSITYGW", Path(__file__).parents[1] / ".cache" / "bin" / "versitygw")
)


@dataclass(frozen=True)
class S3Server:
    """A running S3 server: `root/<bucket>/<key>` are its objects."""

    endpoint: str
    root: Path
    access_key: str
    secret_key: str
    domain: str
    """Base name of virtual-host addresses."""

    def secret(self) -> dict[str, bytes]:
        """Return the data of a Secret with the server's keys."""
        return {
            "accessKeyID": self.access_key.encode(),
            "secretAccessKey": self.secret_key.encode(),
        }


@contextlib.contextmanager
def start_s3(
    folder: Path,
    *,
    access_key: str = "AKIDTESTKEY",
    secret_key: str = "canary-secret-access-key",
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[S3Server]:
    """Run versitygw until the block ends; `certificate` is (certificate, key) for https."""
    root = folder / "s3"
    root.mkdir()
    port = free_port()
    domain = "s3.localhost"
    command = [str(VERSITYGW), "--port", f"127.0.0.1:{port}", "--quiet"]
    command += ["--access", access_key, "--secret", secret_key]
    command += ["--virtual-domain", f"{domain}:{port}"]
    if certificate:
        command += ["--cert", str(certificate[0]), "--key", str(certificate[1])]
    command += ["posix", str(root)]
    log = folder / "versitygw.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for(port, process, log)
        scheme = "https" if certificate else "http"
        yield S3Server(
            f"{scheme}://127.0.0.1:{port}", root, access_key, secret_key, f"{domain}:{port}"
        )
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"versitygw does not listen: {log.read_text()}")


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[int]:
    """Run `answer` for each connection to the port that is yielded; none is left at the end."""
    running: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        # The end of the block cancels what still runs; to asyncio's streams that is an error.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                await answer(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()
        running.discard(asyncio.current_task())

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = [task for task in running if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()


@dataclass
class CuttingProxy:
    """Passes connections on to a server of this machine; counts what that serves and cuts it off."""

    to: int
    """Port of the server."""
    cut_after: int = 0
    """Bytes of one connection after which it is cut."""
    cuts: int = 0
    """How many connections are cut; then all is passed on."""
    served: int = 0
    """Bytes that the server has sent."""
    port: int = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        async with serving(self._serve) as self.port:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, onward = await asyncio.open_connection("127.0.0.1", self.to)
        asking = asyncio.create_task(self._ask(reader, onward))
        passed = 0
        try:
            while data := await upstream.read(1 << 16):
                self.served += len(data)
                passed += len(data)
                writer.write(data)
                await writer.drain()
                if self.cuts and passed >= self.cut_after:
                    self.cuts -= 1
                    return
        finally:
            asking.cancel()
            onward.close()

    async def _ask(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            onward.write(data)
            await onward.drain()


@dataclass
class Request:
    """What a client asked for."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    method: str = "GET"


@dataclass
class LyingServer:
    """A web server with files in memory and switches for each way of being wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Path (with a slash in front) -> content."""
    ranges: bool = True
    """Whether Range headers are honoured."""
    etag: str | None = '"v1"'
    """ETag of every file; `content` makes one from what is in it."""
    last_modified: str | None = None
    length: bool = True
    """Whether the size is told; else the body is chunked."""
    drop_after: int | None = None
    """Bytes of a body after which the connection is cut."""
    drops: int = 0
    """How many answers are cut; then the server behaves."""
    shift: int = 0
    """Bytes by which a range's answer begins too late, with a Content-Range that says so."""
    short: int | None = None
    """Longest range the server gives at once."""
    status: int | None = None
    """Answer to everything, instead of files."""
    body: bytes = b""
    """Body of the answer with `status`."""
    honours_conditions: bool = True
    redirects: dict[str, str] = field(default_factory=dict)
    """Path -> Location."""
    extra_headers: dict[str, str] = field(default_factory=dict)
    claims: int = 0
    """Bytes that Content-Length promises beyond those that come."""
    endless: bool = False
    """Whether a chunked body goes on after the file, until the client leaves."""
    content_range: str = ""
    """What Content-Range says instead of the truth."""
    on_request: Callable[[LyingServer, Request], None] | None = None
    """Called before each answer; may change the server."""
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(
        self, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> AsyncIterator[LyingServer]:
        async with serving(self._serve, tls, port) as self.port:
            self.scheme = "https" if tls else "http"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client went away, which is its right

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        method, path, _ = first.split(" ")
        request = Request(path, headers, method)
        self.requests.append(request)
        if self.on_request is not None:
            self.on_request(self, request)
        status, out, body = self._decide(request)
        chunked = status == 200 and not self.length
        if chunked:
            out["Transfer-Encoding"] = "chunked"
        else:
            out.setdefault("Content-Length", str(len(body) + self.claims))
        head = f"HTTP/1.1 {status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in out.items())
        writer.write(head.encode("latin-1") + b"\r\n")
        if request.method == "HEAD":
            return True
        cut = self.drop_after is not None and self.drops > 0 and len(body) > self.drop_after
        if cut:
            self.drops -= 1
            body = body[: self.drop_after]
        for at in range(0, len(body), 1 << 18):
            piece = body[at : at + (1 << 18)]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if cut or self.claims:
            return False
        while chunked and self.endless:
            writer.write(b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16)))
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _decide(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        out = dict(self.extra_headers)
        path = request.path.partition("?")[0]
        if path in self.redirects:
            return 302, {**out, "Location": self.redirects[path]}, b""
        if self.status is not None:
            return self.status, out, self.body
        if path not in self.files:
            return 404, out, b"no such file"
        content = self.files[path]
        if self.etag is not None:
            made = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            out["ETag"] = made if self.etag == "content" else self.etag
        if self.last_modified is not None:
            out["Last-Modified"] = self.last_modified
        wanted = request.headers.get("if-match")
        if self.honours_conditions and wanted is not None and wanted != out.get("ETag"):
            return 412, out, b""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if asked is None or not self.ranges:
            return 200, out, content
        start, end = int(asked[1]) + self.shift, min(int(asked[2]) + 1, len(content))
        if self.short is not None:
            end = min(end, start + self.short)
        if start >= len(content):
            return 416, {**out, "Content-Range": f"bytes */{len(content)}"}, b""
        told = f"bytes {start}-{end - 1}/{len(content)}"
        out["Content-Range"] = self.content_range or told
        return 206, out, content[start:end]
