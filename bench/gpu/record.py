"""The figures of one run: printed as they come, and kept in a JSON file that is always whole."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


class Record:
    """`figures` of one benchmark; each `put` writes all of them to `<folder>/<name>.json`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.json"
        self.figures: dict[str, Any] = {}
        self._start = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC)
        self.put(date=now.isoformat(timespec="seconds"), versions=versions())

    def put(self, **figures: Any) -> None:
        """Add figures, print them and write the file anew."""
        self.figures.update(figures)
        self.say(json.dumps(figures))
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.figures, indent=1) + "\n")
        part.replace(self.path)

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{self.seconds:7.2f}] {line}", flush=True)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start


def opened(name: str, shape: str) -> Record:
    """Return the record of this command; `--out` names its folder.

    Figures of another shape than the paper's never land among the results.
    """
    results = _HERE / "results" if shape == "paper" else Path(os.environ.get("TMPDIR", "/tmp"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=results, help="where the JSON file goes")
    record = Record(name, parser.parse_args().out)
    # A time limit must not leave servers and files behind: `finally` runs after this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    record.put(shape=shape)
    return record


def versions() -> dict[str, str]:
    """Return what the figures depend on."""
    import torch
    import vllm

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "kernel": platform.release(),
    }
    if torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
        found["driver"] = _driver()
    return found


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.exists() else "unknown"
