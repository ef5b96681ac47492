"""A web server in threads, for tests that are not asynchronous themselves.

Each request has a thread of its own: one that is held keeps no other from its answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message
    from pathlib import Path


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients may go away in the middle of an answer."""


@dataclass
class WebServer:
    """Serves `files` (path -> content) with ranges and ETags made of the content."""

    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    """Path -> another ETag than that of the content."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Beginning of a path -> the bearer token that it wants."""
    before: dict[str, Callable[[int], int | None]] = field(default_factory=dict)
    """Path -> called with the first byte asked for, before the answer; may return a status."""
    requests: list[str] = field(default_factory=list)
    """Paths, as they were asked for."""
    url: str = ""

    def put(self, path: str, folder: Path) -> str:
        """Serve the files of a folder below `path`; return their address."""
        for file in folder.iterdir():
            self.files[f"{path}/{file.name}"] = file.read_bytes()
        return f"{self.url}{path}"

    @contextlib.contextmanager
    def running(self) -> Iterator[WebServer]:
        """Serve on a loopback port until the block ends."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                start = int(wanted[1]) if wanted else 0
                status, headers, body = web.answer(
                    self.path, start, int(wanted[2]) if wanted else None, self.headers
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = _Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(
        self, path: str, start: int, last: int | None, headers: Message
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        self.requests.append(path)
        for beginning, token in self.tokens.items():
            if path.startswith(beginning) and headers.get("Authorization") != f"Bearer {token}":
                return 401, {}, b"who are you?"
        hook = self.before.get(path)
        status = hook(start) if hook else None
        if status is not None or path not in self.files:
            return status or 404, {}, b"no such file"
        content = self.files[path]
        etag = self.etags.get(path) or f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        if headers.get("If-Match", etag) != etag:
            return 412, {}, b""
        if last is None:
            return 200, {"ETag": etag}, content
        part = content[start : last + 1]
        where = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return 206, {"ETag": etag, "Content-Range": where}, part
