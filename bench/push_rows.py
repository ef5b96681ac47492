"""What bringing a revision to an engine took, by one way or another; bench/push.py and bench/gpu/push.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One revision; seconds count from the begin of the training step's part."""

    way: str
    what: str
    in_step: float
    served: float
    """Until the load call answered, or the adapter is Ready."""
    answered: float
    """Until the engine answered a request with it."""
    moved_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.way}, {self.what}: {self.in_step:.2f} s in the step, served after "
            f"{self.served:.2f} s, first answer after {self.answered:.2f} s, "
            f"{self.moved_bytes / 2**20:.0f} MiB written or sent"
        )


def compare(rows: list[Row], ours: str = "lorafleet", theirs: str = "stock") -> dict[str, float]:
    """Return `ours` over `theirs`, for each revision that both ways have."""
    ratios = {}
    by_what = {row.what: row for row in rows if row.way == theirs}
    for row in rows:
        if row.way != ours or row.what not in by_what:
            continue
        for field in ("in_step", "served", "answered", "moved_bytes"):
            ratio = getattr(row, field) / getattr(by_what[row.what], field)
            ratios[f"{row.what}: {field}"] = ratio
            print(f"{ours} / {theirs}, {row.what}, {field}: {ratio:.2f}", flush=True)
    return ratios
