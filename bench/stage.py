"""Bytes per second into the arena: gRPC beside a raw loopback socket, in one run.

    python bench/stage.py [--gib 2] [--streams 1,2,4] [--chunk-mib 4] [--volume /dev/shm]

Every row moves the same bytes from a sender process (which has them in memory) into a mapped
arena file in another process:

- raw, K sockets: TCP connections, each from a process to a process that does `recv_into` on its
  share of the mapped memory, whose pages were mapped beforehand; nothing else is done with the
  bytes. How far K of them gain over one shows what the machine itself gives.
- grpc, K streams: StageAdapter accepts, the chunks go over K connections (K = 1: the
  StageAdapter stream itself; K > 1: SendChunks to K receiver processes, from K sender
  processes), every chunk's crc32c is checked, every value is checked to be finite, the
  received map is kept. The commit (SHA-256 of every tensor, index) is timed apart.

The last lines show the resident memory of the process that received on one stream: anonymous
pages apart from the arena's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import google_crc32c
import grpc.aio
import numpy as np
from lorafleet import frames
from lorafleet.buffers import reuse_large_buffers
from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet.profile import EngineProfile, LoraModule
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.store import RevisionStore
from lorafleet_sidecar.transfer_service import (
    SERVER_OPTIONS,
    TransferSettings,
    add_transfer_service,
)

SERVICE = "/lorafleet.v1alpha1.SidecarService/"
WIDTH, RANK = 4096, 64
PAIR_BYTES = 2 * WIDTH * RANK * 2  # A and B of one module, 1 MiB
SPAWN = multiprocessing.get_context("spawn")
WARM_BYTES = 256 << 20


def adapter_of(size: int) -> tuple[bytes, bytes, int, EngineProfile]:
    """Return header, config, data bytes and engine profile of an adapter of about `size`."""
    pairs = max(1, size // PAIR_BYTES)
    names = [f"model.layers.{index}.self_attn.q_proj" for index in range(pairs)]
    entries: dict[str, Any] = {}
    at = 0
    for name in names:
        for side, shape in (("A", [RANK, WIDTH]), ("B", [WIDTH, RANK])):
            end = at + WIDTH * RANK * 2
            entries[f"base_model.model.{name}.lora_{side}.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [at, end],
            }  # fmt: skip
            at = end
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"],
        "base_model_name_or_path": "bench/base",
    }  # fmt: skip
    profile = EngineProfile(
        base_model="bench/base", dtype="bfloat16", max_lora_rank=RANK, num_hidden_layers=pairs,
        modules=tuple(LoraModule(name, WIDTH, WIDTH) for name in names),
    )  # fmt: skip
    return json.dumps(entries).encode(), json.dumps(config).encode(), at, profile


def source_bytes(size: int) -> memoryview:
    """Return `size` bytes of finite bfloat16 values, resident in this process."""
    one = np.random.default_rng(0).integers(0, 0x7F00, 1 << 20, np.uint16)
    return memoryview(np.resize(one, size // 2)).cast("B")


# The raw socket.


def raw_sender(port: int, size: int, ready: Any) -> None:
    data = source_bytes(size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        ready.wait()
        connection.sendall(data)


def raw_receiver(
    listener: socket.socket, path: Path, begin_at: int, size: int, ready: Any, out: Any
) -> None:
    descriptor = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(descriptor, begin_at + size)
    view = memoryview(mapped)[begin_at:]
    first = begin_at - begin_at % mmap.PAGESIZE
    mapped.madvise(23, first)  # MADV_POPULATE_WRITE: no page faults while the clock runs
    connection, _ = listener.accept()
    ready.wait()
    begin = time.perf_counter()
    at = 0
    while at < size:
        got = connection.recv_into(view[at : at + (4 << 20)])
        at += got
    out.put((begin, time.perf_counter()))


def measure_raw(path: Path, size: int, streams: int) -> float:
    """Return bytes per second of raw sockets into the mapped file, a share of it each."""
    ready, out = SPAWN.Barrier(2 * streams), SPAWN.Queue()
    share = size // streams // mmap.PAGESIZE * mmap.PAGESIZE
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(streams)]
    workers = []
    for index, listener in enumerate(listeners):
        port = listener.getsockname()[1]
        into = (listener, path, index * share, share, ready, out)
        workers.append(SPAWN.Process(target=raw_sender, args=(port, share, ready)))
        workers.append(SPAWN.Process(target=raw_receiver, args=into))
    for worker in workers:
        worker.start()
    times = [out.get() for _ in listeners]  # the clock of all processes of one machine
    for worker in workers:
        worker.join()
    for listener in listeners:
        listener.close()
    return share * streams / (max(end for _, end in times) - min(begin for begin, _ in times))


# gRPC.


def serve(volume: Path, limit: int, size: int, receivers: int, pipe: Any) -> None:
    reuse_large_buffers()
    asyncio.run(_serve(volume, limit, size, receivers, pipe))


async def _serve(volume: Path, limit: int, size: int, receivers: int, pipe: Any) -> None:
    profile = adapter_of(size)[3]
    store = RevisionStore.open(volume, limit)
    store.set_holds(())
    server = grpc.aio.server(options=SERVER_OPTIONS)
    settings = TransferSettings(receivers=receivers)
    service = await add_transfer_service(server, store, lambda: profile, settings)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    before = resident()
    peak = before
    while not pipe.poll():
        peak = {name: max(peak[name], value) for name, value in resident().items()}
        await asyncio.sleep(0.05)
    pipe.send((before, peak, resident()))
    await server.stop(None)
    await service.close()


def resident() -> dict[str, int]:
    """Return this process's resident MiB: anonymous pages and shared (arena) pages."""
    wanted = {"RssAnon": 0, "RssShmem": 0}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in wanted:
            wanted[name] = int(rest.split()[0]) >> 10
    return wanted


def stripe_sender(port: int, at: int, step: int, chunk_bytes: int, jobs: Any, ready: Any) -> None:
    """Send every `step`-th chunk of each job (staging id, size) to one receiver, until None."""
    reuse_large_buffers()

    async def send() -> None:
        options = (("grpc.max_send_message_length", 17 << 20),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            while (job := jobs.get()) is not None:
                staging_id, size = job
                chunks = prepared(size, chunk_bytes, at, step)
                call: Any = channel.stream_unary(SERVICE + "SendChunks")()
                await call.write(frames.encode_staging_id(staging_id))
                await asyncio.sleep(1)  # the receiver makes its plan, as the sidecar did for K = 1
                ready.wait()
                for chunk in chunks:
                    await call.write(frames.encode_chunk(*chunk, frames.SEND_CHUNK_FIELD))
                await call.done_writing()
                await call
                ready.wait()

    asyncio.run(send())


class Senders:
    """K sender processes that stay for several transfers, as an operator does."""

    def __init__(self, ports: list[int], chunk_bytes: int) -> None:
        self.count = len(ports)
        self.ready = SPAWN.Barrier(self.count + 1)
        self.jobs = [SPAWN.SimpleQueue() for _ in ports]
        self.processes = [
            SPAWN.Process(
                target=stripe_sender, args=(port, at, self.count, chunk_bytes, jobs, self.ready)
            )
            for at, (port, jobs) in enumerate(zip(ports, self.jobs, strict=True))
        ]
        for process in self.processes:
            process.start()

    async def send(self, staging_id: str, size: int) -> tuple[float, float]:
        """Return when the first chunk left and when the last receiver had all of its own."""
        for jobs in self.jobs:
            jobs.put((staging_id, size))
        await asyncio.to_thread(self.ready.wait)
        begin = time.perf_counter()
        await asyncio.to_thread(self.ready.wait)
        return begin, time.perf_counter()

    def close(self) -> None:
        for jobs in self.jobs:
            jobs.put(None)
        for process in self.processes:
            process.join()


def prepared(
    size: int, chunk_bytes: int, at: int = 0, step: int = 1
) -> list[tuple[int, int, memoryview]]:
    """Return every `step`-th chunk from `at` on; checksums are made before the clock runs."""
    data = source_bytes(size)
    cuts = chunk_plan(parse_header(adapter_of(size)[0]), chunk_bytes)
    pieces = [(offset, data[offset : offset + length]) for offset, length in cuts[at::step]]
    return [(offset, google_crc32c.value(bytes(piece)), piece) for offset, piece in pieces]


async def stage_once(
    channel: Any,
    size: int,
    chunk_bytes: int,
    fingerprint: str,
    senders: list[Senders],
    streams: int,
) -> tuple[float, float]:
    """Return seconds until the last chunk was taken, and seconds of the commit."""
    header, config, data_bytes, _ = adapter_of(size)
    manifest = pb.AdapterManifest(
        adapter="bench/adapter", fingerprint=fingerprint, safetensors_header=header,
        adapter_config=config, data_bytes=data_bytes, chunk_bytes=chunk_bytes,
    )  # fmt: skip
    chunks = prepared(data_bytes, chunk_bytes) if streams == 1 else []
    call: Any = channel.stream_stream(
        SERVICE + "StageAdapter", response_deserializer=pb.StageAdapterResponse.FromString
    )()
    await call.write(frames.encode_manifest(manifest.SerializeToString()))
    accepted = (await call.read()).accepted
    if streams == 1:
        begin = time.perf_counter()
        for chunk in chunks:
            await call.write(frames.encode_chunk(*chunk))
        # All but what lies in gRPC's window is taken; the commit waits for the rest.
        sent = time.perf_counter()
    else:
        if not senders:
            senders.append(Senders(list(accepted.receiver_ports), chunk_bytes))
        begin, sent = await senders[0].send(accepted.staging_id, data_bytes)
    await call.write(frames.encode_commit())
    committed = await call.read()
    assert committed.WhichOneof("message") == "committed"
    return sent - begin, time.perf_counter() - sent


async def send_stream(
    port: int, size: int, chunk_bytes: int, streams: int, fingerprint: str
) -> tuple[float, float]:
    """Stage a small adapter, so that all processes are warm, then the one that is timed."""
    reuse_large_buffers()
    options = (("grpc.max_send_message_length", 17 << 20),)
    senders: list[Senders] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        small = min(WARM_BYTES, size)
        await stage_once(channel, small, chunk_bytes, fingerprint + "-warm", senders, streams)
        times = await stage_once(channel, size, chunk_bytes, fingerprint, senders, streams)
    for each in senders:
        each.close()
    return times


def measure_grpc(
    volume: Path, limit: int, size: int, chunk_bytes: int, streams: int
) -> tuple[float, float, Any]:
    """Return bytes per second, seconds of the commit, and the receiver's memory."""
    here, there = SPAWN.Pipe()
    receivers = streams if streams > 1 else 0
    server = SPAWN.Process(target=serve, args=(volume, limit, size, receivers, there))
    server.start()
    port = here.recv()
    times = asyncio.run(send_stream(port, size, chunk_bytes, streams, f"{streams}-{time.time()}"))
    here.send("stop")
    memory = here.recv()
    server.join()
    return size / times[0], times[1], memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--streams", default="1,2")
    parser.add_argument("--chunk-mib", type=float, default=4.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--volume", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    size = adapter_of(int(args.gib * (1 << 30)))[2]
    limit = size + WARM_BYTES + (16 << 20)
    chunk_bytes = int(args.chunk_mib * (1 << 20))
    print(f"{size / 1e9:.2f} GB, chunks of {args.chunk_mib:g} MiB, {os.cpu_count()} cores, "
          f"Python {sys.version.split()[0]}, grpcio {grpc.__version__}; best of {args.repeat}")  # fmt: skip
    memory: Any = None
    raw = {int(k): 0.0 for k in args.streams.split(",")}
    rows = {int(k): (0.0, 0.0) for k in args.streams.split(",")}
    for _ in range(args.repeat):
        volume = Path(tempfile.mkdtemp(prefix="lorafleet-bench-", dir=args.volume))
        try:
            RevisionStore.open(volume, limit).close()
            for streams in rows:
                raw[streams] = max(raw[streams], measure_raw(volume / "arena", size, streams))
            for streams in rows:
                rate, commit, seen = measure_grpc(volume, limit, size, chunk_bytes, streams)
                rows[streams] = max(rows[streams], (rate, commit))
                memory = seen if streams == 1 else memory
                shutil.rmtree(volume)
                volume.mkdir()
        finally:
            shutil.rmtree(volume, ignore_errors=True)
    one = raw[min(raw)]
    for streams, rate in raw.items():
        print(
            f"raw, {streams} socket{'s' * (streams > 1):<4}{rate / 1e9:8.2f} GB/s   {rate / one:5.2f} of one"
        )
    for streams, (rate, commit) in rows.items():
        print(f"grpc, {streams} stream{'s' * (streams > 1):<4}{rate / 1e9:8.2f} GB/s   {rate / raw[streams]:5.2f} of raw   "
              f"{rate / rows[min(rows)][0]:5.2f} of one   commit {commit:.2f} s")  # fmt: skip
    if memory:
        before, peak, after = memory
        print(f"receiving process, one stream: anonymous {before['RssAnon']} MiB before, "
              f"{peak['RssAnon']} MiB at most, {after['RssAnon']} MiB after; "
              f"mapped arena {peak['RssShmem']} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
