"""`hack/fuzz`: two processes of mutated inputs, a line each few seconds, findings as files."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fuzzing.limits import HEADROOM, PEAK, SECONDS, TRACED_EVERY
from fuzzing.targets import TARGETS
from fuzzing.worker import Finding, Progress, Share, make, opened, target_of, work

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "fuzz_corpus"
WORKERS = 2
LINE_SECONDS = 3.0
SILENCE_SECONDS = 60.0
"""Without a report a worker counts as hung in something that takes no CPU."""
_SPAWN = multiprocessing.get_context("spawn")


class Lane:
    """One worker, started again behind an input that ended it."""

    def __init__(self, share: Share) -> None:
        self.ended = False
        self._start(share)

    def _start(self, share: Share) -> None:
        self._share = share
        self._heard = time.monotonic()
        self._current = _SPAWN.Value("q", share.first, lock=False)
        self._reports, sending = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=work, args=(share, sending, self._current))
        self._process.start()
        sending.close()

    def poll(self) -> list[Progress]:
        """Return what came since the last call."""
        found: list[Progress] = []
        try:
            while not self.ended and self._reports.poll(0.05):
                progress: Progress = self._reports.recv()
                found.append(progress)
                self._heard, self.ended = time.monotonic(), progress.ended
        except EOFError:
            found.append(Progress(findings=[self._died()]))
        if not self.ended and time.monotonic() - self._heard > SILENCE_SECONDS:
            self._process.kill()
        return found

    def close(self) -> None:
        """Wait for the worker."""
        self._process.join()

    def _died(self) -> Finding:
        """Return the input that ended the worker, made once more, and start the next worker."""
        self._process.join()
        code, share, number = self._process.exitcode, self._share, self._current.value
        name = target_of(share, number)
        with opened([name]) as targets:
            data = make(targets[name], name, share.seed, number)
        self._start(replace(share, first=number + share.step))
        return Finding(name, number, data, f"the worker ended with {code}")


def main() -> int:
    """Run; 0 if nothing was found."""
    arguments = _arguments()
    os.environ["MALLOC_ARENA_MAX"] = "2"  # each thread's arena would count as address space
    started = last = time.monotonic()
    until = started + (arguments.seconds or 10**9)
    print(
        f"seed {arguments.seed}, target {arguments.target}; limits of one input: {SECONDS:g} s of "
        f"CPU, {HEADROOM >> 20} MiB of address space (RLIMIT_AS of the worker); every "
        f"{TRACED_EVERY}th also {PEAK >> 20} MiB by tracemalloc",
        flush=True,
    )
    lanes = [
        Lane(Share(arguments.seed, arguments.target, first, WORKERS, arguments.count, until))
        for first in range(WORKERS)
    ]
    total = Total(arguments.corpus)
    while not all(lane.ended for lane in lanes):
        for lane in lanes:
            for report in lane.poll():
                total.add(report)
        if time.monotonic() - last > LINE_SECONDS:
            last = time.monotonic()
            print(total.line(last - started), flush=True)
    for lane in lanes:
        lane.close()
    print(total.summary(time.monotonic() - started))
    return 1 if total.kinds else 0


class Total:
    """What all workers did; the first input of each kind of finding is kept in `corpus`."""

    def __init__(self, corpus: Path) -> None:
        self.kinds: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._corpus = corpus

    def add(self, report: Progress) -> None:
        """Count a report."""
        self._runs.update(report.runs)
        self._accepted.update(report.accepted)
        for finding in report.findings:
            self.kinds[finding.kind] += 1
            if self.kinds[finding.kind] == 1:
                self._corpus.mkdir(parents=True, exist_ok=True)
                path = self._corpus / finding.file_name
                path.write_bytes(finding.data)
                print(
                    f"FOUND by input {finding.number}, kept as {path}\n{finding.trace}", flush=True
                )

    def line(self, seconds: float) -> str:
        """Return the state in one line."""
        runs = self._runs.total()
        rate = runs / seconds
        return f"{seconds:6.0f} s {runs:9} runs {rate:7.0f}/s {len(self.kinds)} kinds of finding"

    def summary(self, seconds: float) -> str:
        """Return the state, what each target took, and the findings."""
        lines = [self.line(seconds)]
        for name, runs in self._runs.items():
            lines.append(f"  {name:7} {runs:9} runs, {self._accepted[name]} accepted")
        lines += [f"  {count} times: {kind}" for kind, count in self.kinds.most_common()]
        return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seconds", type=float, default=0, help="end after so long (0: by count)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs")
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder for inputs found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
