"""Streams completions without end, one connection for each model, and notes when tokens arrive.

    python bench/gpu/stream_client.py PORT MAX_TOKENS MODEL..

For each line of its standard input it prints one of JSON: the requests of all models since the line
before, each a list of moments (CLOCK_MONOTONIC, one clock for all processes); it ends with its
input. It does nothing else but note the moment of each event: what it measures is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

_HEADERS = "POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"


async def stream(port: int, model: str, tokens: int, moments: list[float]) -> None:
    """Ask for one completion and append the moment of each event to `moments`."""
    body = json.dumps(
        {
            "model": model,
            "prompt": [1, 2, 3, 4],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{_HEADERS}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{model}: {status!r} {await reader.read(500)!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                moments.append(time.monotonic())
            elif line.startswith(b"data: [DONE]"):
                return
        raise RuntimeError(f"{model}: the stream ended early")
    finally:
        writer.close()


async def forever(port: int, model: str, tokens: int, requests: list[list[float]]) -> None:
    """Ask again and again, one request at a time."""
    while True:
        requests.append([])
        await stream(port, model, tokens, requests[-1])


def taken(found: dict[str, list[list[float]]]) -> list[list[float]]:
    """Return the requests so far; of each that still runs only its last moment stays."""
    requests = [request[:] for each in found.values() for request in each]
    for each in found.values():
        del each[:-1]
        for request in each:
            del request[:-1]
    return requests


async def main(port: int, tokens: int, models: list[str]) -> None:
    """Stream for all models until the standard input is closed."""
    found: dict[str, list[list[float]]] = {model: [] for model in models}
    tasks = [
        # Different lengths: they must not all start anew at the same moment.
        asyncio.create_task(forever(port, model, tokens - 64 * place, found[model]))
        for place, model in enumerate(models)
    ]
    while True:
        line = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        done, _ = await asyncio.wait([line, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a stream that ended did so by an error
        if not line.result():
            break
        print(json.dumps(taken(found)), flush=True)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
