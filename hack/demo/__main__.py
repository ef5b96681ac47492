"""`make demo`: prepares, starts the fleet, tells the story, ends everything."""

from __future__ import annotations

import shutil
import signal
import sys
import time
import traceback
from typing import NoReturn

from localstack import LocalStack

from demo import prepare
from demo.fleet import start
from demo.screen import step
from demo.story import Story

RUN = prepare.CACHE / "run"
INTRODUCTION = """
The demo of lorafleet: one vLLM with room for two LoRA adapters serves three, and a second revision of one.
All of it runs on this machine's loopback and ends with the demo. docs/demo.md tells what to look at."""


def _interrupted(_number: int, _frame: object) -> NoReturn:
    """End the story; a second Ctrl-C must not keep the processes from being ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    print("\nstopping everything that runs", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; 0, or 1 after one line that says what to do."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    shutil.rmtree(RUN, ignore_errors=True)
    print(INTRODUCTION)
    started = time.monotonic()
    try:
        with LocalStack(RUN) as stack, start(stack) as fleet:
            Story(fleet).tell()
            step("stopping everything")
    except KeyboardInterrupt:
        print("stopped before the end; everything that ran is ended", file=sys.stderr)
        return 130
    except Exception as error:  # the last place where it can become one line
        trace = RUN / "logs" / "demo.log"
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_text(traceback.format_exc())
        line = str(error).split("\n")[0] or type(error).__name__
        logs = "" if "(log: " in line else f" (logs below {RUN})"
        print(f"the demo failed: {line}{logs}", file=sys.stderr)
        return 1
    print(f"\nDone in {time.monotonic() - started:.0f} s; everything that ran is ended.")
    print("Next: docs/install.md for a cluster of yours, docs/concepts.md for the words.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
