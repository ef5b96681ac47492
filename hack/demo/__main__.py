"""`make demo`: prepares, starts the fleet, tells the story, ends everything."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from typing import NoReturn

from localcluster import ClusterFailed
from localstack import LocalStack
from processes import ProcessFailed

from demo import prepare
from demo.cluster import ApiException, NotReached
from demo.fleet import start
from demo.screen import step
from demo.story import Story, StoryBroken

RUN = prepare.CACHE / "run"


def _interrupted(number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; 0, or 1 after one line that says what to do."""
    signal.signal(signal.SIGTERM, _interrupted)
    shutil.rmtree(RUN, ignore_errors=True)
    started = time.monotonic()
    try:
        with LocalStack(RUN) as stack, start(stack) as fleet:
            Story(fleet).tell()
            step("stopping everything")
    except KeyboardInterrupt:
        print("stopped; everything that ran is ended", file=sys.stderr)
        return 130
    except (ProcessFailed, ClusterFailed, NotReached, StoryBroken, ApiException, OSError) as error:
        line = str(error).split("\n")[0]
        print(f"the demo failed: {line} (logs: {RUN}/logs; run `make demo` again)", file=sys.stderr)
        return 1
    print(f"\nDone in {time.monotonic() - started:.0f} s; everything that ran is ended.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
