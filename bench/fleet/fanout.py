"""One adapter for eight sidecars, each in a network namespace of its own behind a shaped link.

    python bench/fleet/fanout.py [--engines 8] [--mib 32] [--mbit 100]

Needs root, `ip` and `tc`. A bridge joins the namespaces; each link, the operator's too, carries
--mbit in each direction (tc tbf). Prints how often each byte of the source was read and sent by the
operator, and the time until the last engine had committed, beside that of a transfer to one engine:
to all of them, filled by a neighbour, and with the first, a middle and the last of the chain killed,
frozen (SIGSTOP) or cut off the network when half of it is sent. What it made it removes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from lorafleet.buffers import reuse_large_buffers
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.fanout import Target, chunk_step, fill, spread
from lorafleet_operator.transfer.streaming import Limits, Payload
from staging_builders import source_adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from staging_builders import SourceAdapter

FAULTS = ("kill", "freeze", "cut")
SETTINGS = OperatorSettings()


@contextmanager
def network(ends: int, mbit: int) -> Iterator[list[tuple[str, str]]]:
    """Yield (namespace, address) of each end; every link is shaped in both directions."""
    tag = f"lf{os.getpid() % 10000}"
    shape = f"root tbf rate {mbit}mbit burst 128kb latency 200ms"
    undo: list[str] = []

    def sh(command: str, back: str = "") -> None:
        subprocess.run(command.split(), check=True)
        undo.extend([back] if back else [])

    try:
        sh(f"ip link add {tag}b type bridge", f"ip link del {tag}b")
        sh(f"ip link set {tag}b up")
        places = [(f"{tag}n{number}", f"10.213.77.{number + 1}") for number in range(ends)]
        for number, (name, address) in enumerate(places):
            outer, inner = f"{tag}h{number}", f"{tag}i{number}"
            sh(f"ip netns add {name}", f"ip netns del {name}")
            sh(f"ip link add {outer} type veth peer name {inner} netns {name}")
            sh(f"ip link set {outer} master {tag}b up")
            sh(f"ip -n {name} addr add {address}/24 dev {inner}")
            sh(f"ip -n {name} link set {inner} up")
            sh(f"tc -n {name} qdisc add dev {inner} {shape}")
            sh(f"tc qdisc add dev {outer} {shape}")
        yield places
    finally:
        for command in reversed(undo):
            subprocess.run(command.split(), check=False)


class Engines:
    """Sidecar processes, by pod UID."""

    def __init__(self, root: Path, layers: int) -> None:
        self.targets: dict[str, Target] = {}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._places: dict[str, tuple[str, str]] = {}
        self._root, self._layers = root, layers

    async def start(self, uid: str, namespace: str, address: str) -> None:
        self._places[uid] = namespace, address
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", namespace, sys.executable, str(TESTS / "staging_server.py"),
            str(self._root / uid), str((self._layers * 4 + 16) << 20), "0",
            uid, address, str(self._layers),
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)},
        )  # fmt: skip
        self.processes[uid] = process
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        self.targets[uid] = Target(SidecarClient(address, port), kind="one profile")

    def harm(self, fault: str, uid: str) -> None:
        if fault == "cut":
            self._link(uid, "down")
        else:
            end = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
            self.processes[uid].send_signal(end)

    async def mend(self, fault: str, uid: str) -> None:
        if fault == "cut":
            self._link(uid, "up")
        elif fault == "freeze":
            self.processes[uid].send_signal(signal.SIGCONT)
        else:
            await self.processes[uid].wait()
            await self.targets[uid].client.close()
            place = list(self.targets)
            await self.start(uid, *self._places[uid])
            self.targets = {uid: self.targets[uid] for uid in place}

    def _link(self, uid: str, state: str) -> None:
        namespace, _ = self._places[uid]
        device = namespace.replace("n", "i")
        subprocess.run(f"ip -n {namespace} link set {device} {state}".split(), check=True)

    async def stop(self) -> None:
        for uid, process in self.processes.items():
            if uid in self.targets:
                await self.targets[uid].client.close()
            if process.returncode is None:
                process.kill()
            await process.wait()


async def send(
    adapter: SourceAdapter,
    targets: dict[str, Target],
    chunk: int,
    at_half: Callable[[], None] = lambda: None,
) -> tuple[set[str], float, float, float]:
    """Return the committed digests, how often bytes were read and sent, and the seconds."""
    read = sent = 0
    cuts = adapter.cuts(chunk)

    async def source(offset: int, length: int) -> bytes:
        nonlocal read
        read += length
        return adapter.data[offset : offset + length]

    def count(amount: int) -> None:
        nonlocal sent
        if sent < len(adapter.data) // 2 <= sent + amount:
            at_half()
        sent += amount

    began = time.perf_counter()
    limits = Limits(SETTINGS.window_chunks * SETTINGS.chunk_bytes // chunk, SETTINGS.chunk_bytes)
    results = await spread(Payload(adapter.manifest(chunk), cuts, source), targets, limits, count)
    took = time.perf_counter() - began
    done = [result.digest for result in results.values() if isinstance(result, pb.StagedRevision)]
    print(f"    {len(done)} of {len(targets)} engines have it", flush=True)
    return set(done), read / len(adapter.data), sent / len(adapter.data), took


async def measure(places: list[tuple[str, str]], root: Path, wanted: argparse.Namespace) -> None:
    mib, chunk = wanted.mib, chunk_step(wanted.mib << 20, SETTINGS.chunk_bytes)
    seeds = iter(range(100))

    def fresh() -> SourceAdapter:  # a layer of rank 64 and width 2048 has 1 MiB
        return source_adapter(next(seeds), layers=mib, rank=64)

    engines = Engines(root, mib)
    try:
        for number, (namespace, address) in enumerate(places):
            await engines.start(f"pod-{number}", namespace, address)
        head, *others = engines.targets
        first = fresh()
        [digest], _, _, single = await send(first, {head: engines.targets[head]}, chunk)

        def report(what: str, read: float, sent: float, took: float) -> None:
            print(
                f"{what}: source read {read:.3f} times, operator sent {sent:.3f} times, last engine "
                f"after {took:.2f} s, {took / single:.2f} of one transfer ({single:.2f} s)",
                flush=True,
            )

        _, *figures = await send(fresh(), engines.targets, chunk)
        report("all engines", *figures)

        began = time.perf_counter()
        order = pb.SendAdapterRequest(
            digest=digest, adapter=first.name, fingerprint=first.fingerprint, chunk_bytes=chunk
        )
        rest = {uid: engines.targets[uid] for uid in others}
        filled = await fill(order, engines.targets[head].client, rest, 120)
        assert all(isinstance(result, pb.StagedRevision) for result in filled.values()), filled
        report("filled by a neighbour", 0.0, 0.0, time.perf_counter() - began)

        positions = {"first": head, "middle": others[len(others) // 2], "last": others[-1]}
        for fault in wanted.faults.split(","):
            for where, uid in positions.items():
                adapter = fresh()
                harm = partial(engines.harm, fault, uid)
                _, *figures = await send(adapter, engines.targets, chunk, harm)
                report(f"{fault}, {where}", *figures)
                await engines.mend(fault, uid)
                await send(adapter, engines.targets, chunk)  # all are well again
    finally:
        await engines.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)  # the operator's namespace
    wanted = parser.parse_args()
    if wanted.inside:
        reuse_large_buffers()
        root = Path(tempfile.mkdtemp(prefix="lorafleet-fanout-", dir="/dev/shm"))
        try:
            asyncio.run(measure(json.loads(wanted.inside), root, wanted))
        finally:
            shutil.rmtree(root)
        return
    with network(wanted.engines + 1, wanted.mbit) as (operator, *places):
        command = ["ip", "netns", "exec", operator[0], sys.executable, __file__]
        command += [*sys.argv[1:], "--inside", json.dumps(places)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
