"""Host memory that was touched before: a virtual machine's first touch of a page can take a microsecond."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where there is less than that, this process is the one to go.
_TOUCH = """
import mmap, pathlib, sys
pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
kept = []
for size in [1 << 28] * (int(sys.argv[1]) >> 28):
    kept.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
"""


@contextmanager
def warmed(nbytes: int) -> Iterator[None]:
    """Touch so much memory while the block runs, and give it back."""
    process = subprocess.Popen([sys.executable, "-c", _TOUCH, str(nbytes)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
