"""Many revisions of one adapter on a real engine: does any process keep what it no longer needs?

    python bench/soak.py --revisions 500 [--push]

Each revision is new content at the source; the next one comes when the last is Ready. With `--push` a
trainer in this process pushes them instead, out of a PEFT model of which a tenth of the tensors
changes. Prints the resident memory (anonymous pages, so the arena's own pages do not count) of the
engine's processes, the sidecar, the operator and the trainer, the arena's and the operator's disk, and
how each grows with a revision after the first tenth, by the middle slope (Theil-Sen) of all samples.
The same of open files, and of pushes what each sent. Ends with 1 if memory or disk grows by MOST_KIB a
revision, files by MOST_FILES, or a push sends more than MOST_SENT of the first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent / "chaos"))

import psutil
from fleet import running_fleet
from push_training import Tenths, policy
from pushing import taking_pushes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lorafleet.push import Fleet
    from real_chain import RealChain

MOST_KIB = 16.0
MOST_FILES = 0.02
MOST_SENT = 0.15
ENGINE = "engine-0"
ARENA = 16 << 20
"""Room for eight, since each takes 2 MiB at least: full at once, for an arena keeps what it can."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--revisions", type=int, default=500)
    parser.add_argument("--push", action="store_true")
    wanted = parser.parse_args()
    with running_fleet(1, arena_bytes=ARENA) as chain, ExitStack() as stack:
        if not wanted.push:
            watched = Watched(chain, {})
            soak(watched, lambda number: renew(chain, number), wanted.revisions)
            return int(not watched.flat(wanted.revisions))
        assert chain.operator is not None
        chain.operator.process.stop()
        spool = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lorafleet-bench-")))
        trainer = Trainer(chain, stack.enter_context(taking_pushes(chain, spool)))
        watched = Watched(chain, {"trainer": os.getpid()}, spool)
        soak(watched, trainer.push, wanted.revisions)
        flat, small = watched.flat(wanted.revisions), trainer.sent_little()
        return int(not (flat and small))


def soak(watched: Watched, advance: Callable[[int], None], revisions: int) -> None:
    """Bring revision after revision to Ready, ask each for a few tokens, and look at everything."""
    began, chain = time.monotonic(), watched.chain
    for number in range(revisions):
        advance(number)
        chain.tokens(ENGINE, f"{chain.namespace}/soak", max_tokens=4)
        watched.look()
        if number % max(1, revisions // 20) == 0 or number + 1 == revisions:
            figures = ", ".join(f"{name} {mib:.2f}" for name, mib in watched.sizes[-1].items())
            took = time.monotonic() - began
            print(f"revision {number + 1}, {took:.0f} s: {figures} MiB", flush=True)


def renew(chain: RealChain, number: int) -> None:
    """Put revision `number` at the source and bring it to Ready."""
    before = chain.status("soak").get("digest", "") if number else ""
    files = chain.make(f"soak-{number % 2}", seed=number)
    if number == 0:
        chain.s3_adapter("soak", files)
        chain.patch("soak", {"source": {"pollIntervalSeconds": 1}})
    else:
        chain.s3.upload(files, "soak")
    deadline = time.monotonic() + 60
    while True:
        status = chain.status("soak")
        ready = {"type": "Ready", "status": "True"}.items()
        if status.get("digest", "") not in ("", before) and any(
            ready <= each.items() for each in status.get("conditions", [])
        ):
            return
        assert time.monotonic() < deadline, f"revision {number} is not Ready: {status}"
        time.sleep(0.05)


class Trainer:
    """Pushes a PEFT model of which a tenth of the tensors changes."""

    def __init__(self, chain: RealChain, fleet: Fleet) -> None:
        self._place = {"name": "soak", "base_model": chain.engines[ENGINE].spec.base_model}
        self._fleet, self._model = fleet, policy(chain.model)
        self._tenths = Tenths(self._model)
        self._sent: list[int] = []

    def push(self, number: int) -> None:
        """Push revision `number` and wait until the engine serves it."""
        self._tenths.change(number)
        made = self._fleet.push(self._model, step=number, pool="pool", **self._place)
        assert made is not None
        made.wait(timeout=60)
        self._sent.append(made.sent_bytes)

    def sent_little(self) -> bool:
        """Print what the pushes sent; return whether it is little."""
        first, most = self._sent[0], max(self._sent[1:])
        print(
            f"each push after the first sent {statistics.mean(self._sent[1:]) / first:.3f} of its "
            f"{first} bytes in the mean, {most / first:.3f} at most (bar {MOST_SENT})"
        )
        return most <= MOST_SENT * first


class Watched:
    """The programs of a fleet with one engine, and others by process id."""

    def __init__(self, chain: RealChain, others: Mapping[str, int], spool: Path | None = None):
        assert chain.operator is not None
        self.chain = chain
        self._spool, self._others = spool, others
        self._programs = {
            "engine": chain.engines[ENGINE].process.pid,
            "sidecar": chain.sidecars[ENGINE].process.pid,
            "operator": chain.operator.process.pid,
        }
        self.sizes: list[dict[str, float]] = []
        """MiB, sample by sample."""
        self._files: list[dict[str, float]] = []

    def look(self) -> None:
        """Take a sample."""
        all_ = {name: _family(pid) for name, pid in self._programs.items()}
        all_ |= {name: [psutil.Process(pid)] for name, pid in self._others.items()}
        sizes = {name: sum(map(_anonymous_mib, each)) for name, each in all_.items()}
        arena = self.chain.metric(ENGINE, "lorafleet_sidecar_staging_bytes", state="used")
        index = self.chain.engines[ENGINE].volume / "index.json"
        sizes |= {"arena": arena / 2**20, "index": index.stat().st_size / 2**20}
        if self._spool is not None:
            files = (each for each in self._spool.rglob("*") if each.is_file())
            sizes["disk"] = sum(each.stat().st_size for each in files) / 2**20
        self.sizes.append(sizes)
        self._files.append({name: sum(map(_open_files, each)) for name, each in all_.items()})

    def flat(self, revisions: int) -> bool:
        """Print how each grew; return whether all stay below what is allowed."""
        settle = max(10, revisions // 10)
        print(f"growth a revision after the first {settle}:")
        sizes = [_grown(self.sizes[settle:], name, 1024, "KiB", MOST_KIB) for name in self.sizes[0]]
        files = [
            _grown(self._files[settle:], name, 1, "files", MOST_FILES) for name in self._files[0]
        ]
        return all(sizes + files)


def _grown(
    samples: Sequence[Mapping[str, float]], name: str, scale: float, unit: str, most: float
) -> bool:
    values = [each[name] * scale for each in samples]
    pairs = itertools.combinations(enumerate(values), 2)
    slope = statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs)
    print(
        f"  {name}: {slope:.2f} {unit}, from {values[0]:.0f} to {values[-1]:.0f} "
        f"({slope / most:.3f} of what is allowed)"
    )
    return slope < most


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _anonymous_mib(process: psutil.Process) -> float:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return int(fields["Anonymous"].split()[0]) / 1024


def _open_files(process: psutil.Process) -> int:
    try:
        return process.num_fds()
    except psutil.Error:
        return 0


if __name__ == "__main__":
    sys.exit(main())
