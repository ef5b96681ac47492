"""Threads that count what they are given."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Counting(ThreadPoolExecutor):
    """Counts what is submitted."""

    count = 0

    def submit(self, *job: Any, **options: Any) -> Any:
        self.count += 1
        return super().submit(*job, **options)
