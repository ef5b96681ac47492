"""What a kubelet does for `kubectl port-forward`, and nothing else: SPDY/3.1 below the API server.

with KubeletPorts(kube, directory, "node", {9443: port}) as kubelet:   # found by the Node object
    ...                                          # port 9443 of its pods leads to 127.0.0.1:port
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from localpki import write_pki

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kube_rest import KubeRest

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING = 1, 2, 3, 6
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
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.forwarded: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        self._kube.create("/api/v1/nodes", {"metadata": {"name": self._node}})
        port = self._listener.getsockname()[1]
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self._kube.merge(f"/api/v1/nodes/{self._node}/status", {"status": status})
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()
        self._listener.close()
        self._kube.delete(f"/api/v1/nodes/{self._node}")

    def cut(self) -> None:
        """Break what is being forwarded, as the end of a pod does."""
        while self._open:
            with suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                found, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(found,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            file = connection.makefile("rb")
            _, path, *_ = file.readline().decode().split()
            while file.readline().strip():
                pass
            _, _, namespace, pod = path.partition("?")[0].split("/")
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
                b"X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
            )
            self._open.append(connection)
            self.forwarded.append((namespace, pod))
            _Frames(connection, file, self._ports).run()


class _Frames:
    """The streams of one connection: two for each forwarded one, of errors and of data."""

    def __init__(self, connection: socket.socket, file: Any, ports: Mapping[int, int]) -> None:
        self._connection, self._file, self._ports = connection, file, ports
        self._sending = threading.Lock()
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)
        self._pack = zlib.compressobj(zdict=DICTIONARY)
        self._errors: dict[bytes, int] = {}
        self._targets: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Serve until the other side is gone."""
        try:
            while len(head := self._file.read(8)) == 8:
                first, second = struct.unpack(">II", head)
                body = self._file.read(second & 0xFFFFFF)
                if first >> 31:
                    self._control(first & 0xFFFF, body)
                elif target := self._targets.get(first):
                    target.sendall(body)
                    if second >> 24 & _FIN:
                        target.shutdown(socket.SHUT_WR)
        finally:
            for target in self._targets.values():
                target.close()

    def _control(self, kind: int, body: bytes) -> None:
        if kind == _PING:
            self._send(0x80030000 | _PING, 0, body)
        elif kind == _RST_STREAM and (target := self._targets.get(int.from_bytes(body[:4]))):
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
        elif kind == _SYN_STREAM:
            stream = int.from_bytes(body[:4])
            headers = self._headers(self._unpack.decompress(body[10:]))
            with self._sending:
                none = self._pack.compress(bytes(4)) + self._pack.flush(zlib.Z_SYNC_FLUSH)
                self._send_locked(0x80030000 | _SYN_REPLY, 0, body[:4] + none)
            if headers[b"streamtype"] == b"error":
                self._errors[headers[b"requestid"]] = stream
                return
            port = self._ports[int(headers[b"port"])]
            target = socket.create_connection(("127.0.0.1", port))
            self._targets[stream] = target
            error = self._errors.pop(headers[b"requestid"])
            threading.Thread(target=self._back, args=(target, stream, error), daemon=True).start()

    @staticmethod
    def _headers(block: bytes) -> dict[bytes, bytes]:
        found, at = [], 4
        while at < len(block):
            length = int.from_bytes(block[at : at + 4])
            found.append(block[at + 4 : at + 4 + length])
            at += 4 + length
        return dict(zip(found[::2], found[1::2], strict=True))

    def _back(self, target: socket.socket, stream: int, error: int) -> None:
        with suppress(OSError):
            while data := target.recv(1 << 16):
                self._send(stream, 0, data)
        with suppress(OSError):
            self._send(stream, _FIN, b"")
            self._send(error, _FIN, b"")

    def _send(self, first: int, flags: int, body: bytes) -> None:
        with self._sending:
            self._send_locked(first, flags, body)

    def _send_locked(self, first: int, flags: int, body: bytes) -> None:
        self._connection.sendall(struct.pack(">II", first, flags << 24 | len(body)) + body)
