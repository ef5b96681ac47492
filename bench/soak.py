"""Many revisions of one adapter on a real engine: does any process keep what it no longer needs?

    python bench/soak.py --revisions 500

Each revision is new content at the source; the next one comes when the last is Ready. Prints the
resident memory (proportional share of anonymous pages, so the arena's own pages do not count) of the
engine's processes, the sidecar and the operator, and the growth per revision after the first tenth,
by the middle slope (Theil-Sen) of all samples. Ends with 1 if one grows by 1 MiB a revision or more.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent / "chaos"))

import psutil
from fleet import running_fleet

if TYPE_CHECKING:
    from real_chain import RealChain

MOST_MIB = 1.0
ENGINE = "engine-0"


def anonymous_mib(pid: int) -> float:
    """Return the anonymous resident memory of a process and all its children."""
    pages = 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
        pages += int(fields["Anonymous"].split()[0])
    return pages / 1024


def sample(chain: RealChain) -> dict[str, float]:
    """Return the memory of each program, and the size of the sidecar's index."""
    assert chain.operator is not None
    programs = {
        "engine": chain.engines[ENGINE].process,
        "sidecar": chain.sidecars[ENGINE].process,
        "operator": chain.operator.process,
    }
    found = {name: anonymous_mib(process.pid) for name, process in programs.items()}
    found["index"] = (chain.engines[ENGINE].volume / "index.json").stat().st_size / 2**20
    return found


def slope(values: list[float]) -> float:
    """Return the median slope between all pairs of samples, in units a sample."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def advance(chain: RealChain, number: int) -> None:
    """Bring revision `number` to Ready."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--revisions", type=int, default=500)
    wanted = parser.parse_args()
    settle = max(10, wanted.revisions // 10)
    samples: list[dict[str, float]] = []
    with running_fleet(1) as chain:
        began = time.monotonic()
        for number in range(wanted.revisions):
            advance(chain, number)
            chain.tokens(ENGINE, f"{chain.namespace}/soak", max_tokens=4)
            samples.append(sample(chain))
            if number % max(1, wanted.revisions // 20) == 0 or number + 1 == wanted.revisions:
                figures = ", ".join(f"{name} {mib:.2f}" for name, mib in samples[-1].items())
                took = time.monotonic() - began
                print(f"revision {number + 1}, {took:.0f} s: {figures} MiB", flush=True)
    worst = 0.0
    for name in samples[0]:
        values = [each[name] for each in samples[settle:]]
        grown = slope(values)
        worst = max(worst, grown)
        print(
            f"{name}: {grown * 1024:.1f} KiB a revision after the first {settle}, from {values[0]:.1f} "
            f"to {values[-1]:.1f} MiB ({grown / MOST_MIB:.3f} of what is allowed)"
        )
    return int(worst >= MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
