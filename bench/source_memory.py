"""Memory and speed of reading a large adapter from each kind of source.

    python bench/source_memory.py [--gib 2] [--chunk-mib 2] [--ahead 4]

Streams one sparse adapter through `resolve()` and `read()` as the operator's transfer does (the
chunk size, a few reads ahead, one pass) from a volume, from a web server with and without ranges
and versions, and from a real S3 server. Each source is read in a fresh process, so that one's
memory is not another's. Prints the growth of resident memory, peak over the reading process's
state before `open_source`, and MB/s; exits 1 above 256 MiB.

The servers take part of the same cores: the speeds say what one loopback stream costs here, not
what a network gives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack")]

LIMIT_MIB = 256
MIB = 1 << 20


def make_adapter(folder: Path, data_bytes: int) -> None:
    """Write a valid adapter whose tensor data is a hole in the file."""
    folder.mkdir(parents=True)
    half = data_bytes // 2
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    header = {
        name.format("A"): {"dtype": "BF16", "shape": [64, half // 128], "data_offsets": [0, half]},
        name.format("B"): {
            "dtype": "BF16",
            "shape": [half // 128, 64],
            "data_offsets": [half, 2 * half],
        },
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 2 * half)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 64, "lora_alpha": 64}))


class FileHandler(BaseHTTPRequestHandler):
    """Serves files with sendfile; with ranges and an ETag below /ranges, without below /plain."""

    protocol_version = "HTTP/1.1"
    root: Path

    def do_GET(self) -> None:
        _, kind, name = self.path.split("/", 2)
        path = self.root / name
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        start, end = 0, size
        asked = self.headers.get("Range")
        ranged = kind == "ranges" and asked is not None
        if ranged:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, size)
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        if kind == "ranges":
            self.send_header("ETag", '"v1"')
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            try:
                while start < end:
                    sent = os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)
                    start += sent
            except OSError:
                self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class Resident(threading.Thread):
    """Samples the process's resident memory every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_bytes = self.peak = resident_bytes()
        self.running = True

    def run(self) -> None:
        while self.running:
            self.peak = max(self.peak, resident_bytes())
            time.sleep(0.005)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def read_through(job: dict[str, Any]) -> dict[str, float]:
    """Read the whole adapter as the transfer does; return figures."""
    from lorafleet_operator.sources.bounds import SourceSettings
    from lorafleet_operator.sources.registry import open_source

    counted = [0]

    def count(length: int) -> None:
        counted[0] += length

    resident = Resident()
    resident.start()
    source = open_source(
        job["source"],
        namespace="team-a",
        name="large",
        settings=SourceSettings(volume_root=Path(job["volume_root"]), allow_private_addresses=True),
        secret={key: value.encode() for key, value in job["secret"].items()},
        on_read=count,
    )
    began = time.perf_counter()
    found = await source.resolve()
    resolved, resolve_bytes = time.perf_counter(), counted[0]
    chunk = job["chunk_bytes"]
    reads: deque[asyncio.Task[Any]] = deque()
    done = 0
    for offset in range(0, found.data_bytes, chunk):
        length = min(chunk, found.data_bytes - offset)
        reads.append(asyncio.create_task(found.read(offset, length)))
        if len(reads) >= job["ahead"]:
            done += len(await reads.popleft())
    while reads:
        done += len(await reads.popleft())
    ended = time.perf_counter()
    assert done == found.data_bytes
    resident.running = False
    resident.join()
    await source.aclose()
    return {
        "growth_mib": (max(resident.peak, resident_bytes()) - resident.start_bytes) / MIB,
        "resolve_ms": (resolved - began) * 1e3,
        "resolve_kib": resolve_bytes / 1024,
        "mb_per_s": done / (ended - resolved) / 1e6,
    }


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Run `read_through` in a process of its own."""
    answer = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps(job)], check=True, capture_output=True
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--chunk-mib", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=4)
    parser.add_argument("--job")
    options = parser.parse_args()
    if options.job:
        print(json.dumps(asyncio.run(read_through(json.loads(options.job)))))
        return 0

    from servers import start_s3

    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        make_adapter(folder / "team-a" / "claim" / "large", int(options.gib * (1 << 30)))
        FileHandler.root = folder / "team-a" / "claim"
        web = ThreadingHTTPServer(("127.0.0.1", 0), FileHandler)
        web.daemon_threads = True
        threading.Thread(target=web.serve_forever, daemon=True).start()
        held.callback(web.shutdown)
        s3 = held.enter_context(start_s3(folder))
        (s3.root / "models").mkdir()
        make_adapter(s3.root / "models" / "large", int(options.gib * (1 << 30)))
        url = f"http://127.0.0.1:{web.server_port}"
        bucket = {"bucket": "models", "prefix": "large", "endpoint": s3.endpoint, "pathStyle": True}
        sources: dict[str, dict[str, Any]] = {
            "volume": {"persistentVolumeClaim": {"claimName": "claim", "path": "large"}},
            "http, ranges and ETag": {"http": {"url": f"{url}/ranges/large"}},
            "http, neither": {"http": {"url": f"{url}/plain/large"}},
            "s3 (versitygw, SigV4)": {"s3": bucket, "credentialsSecretRef": {"name": "keys"}},
        }
        print(f"{options.gib:g} GiB, chunks of {options.chunk_mib} MiB, {options.ahead} ahead")
        print(f"{'source':24}{'growth MiB':>12}{'MB/s':>8}{'resolve ms':>12}{'resolve KiB':>13}")
        worst = 0.0
        for name, source in sources.items():
            found = measure(
                {
                    "source": source,
                    "volume_root": str(folder),
                    "secret": {key: value.decode() for key, value in s3.secret().items()},
                    "chunk_bytes": options.chunk_mib * MIB,
                    "ahead": options.ahead,
                }
            )
            worst = max(worst, found["growth_mib"])
            print(
                f"{name:24}{found['growth_mib']:12.1f}{found['mb_per_s']:8.0f}"
                f"{found['resolve_ms']:12.0f}{found['resolve_kib']:13.0f}",
                flush=True,
            )
    print(
        f"bar: at most {LIMIT_MIB} MiB, worst {worst:.1f}: {'kept' if worst <= LIMIT_MIB else 'BROKEN'}"
    )
    return 0 if worst <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
