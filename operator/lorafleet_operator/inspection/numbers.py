"""What a pair of factors computes, as numbers that tell one update from another."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypedDict

import numpy as np

Array = np.ndarray[Any, Any]


class ModuleNumbers(TypedDict):
    """Of `delta = scaling * B @ A`, in float64."""

    rank: int
    scaling: float
    shape: list[int]  # of delta: [out, in]
    fro: float  # Frobenius norm
    sum: float  # of all elements
    probe: float  # u @ delta @ v: another number if delta is transposed or of another expert


def numbers_of(a: Array, b: Array, scaling: float) -> ModuleNumbers:
    """Return the numbers of A [rank, in] and B [out, rank], float64.

    delta itself, which is out times in, is never made.
    """
    u, v = _probes(b.shape[0], a.shape[1])
    # With B = Q R and A^T = P S, |B @ A| is |R @ S^T|; exact also where the factors cancel,
    # which the sums of squares are not.
    core = _triangle(b) @ _triangle(a.T).T
    return {
        "rank": a.shape[0],
        "scaling": scaling,
        "shape": [b.shape[0], a.shape[1]],
        "fro": abs(scaling) * float(np.linalg.norm(core)),
        "sum": scaling * float(b.sum(axis=0) @ a.sum(axis=1)),
        "probe": scaling * float((u @ b) @ (a @ v)),
    }


def _triangle(factor: Array) -> Array:
    return np.asarray(np.linalg.qr(factor, mode="r"))


@lru_cache(maxsize=64)
def _probes(rows: int, columns: int) -> tuple[Array, Array]:
    """Return u_i = cos(i + 1) and v_j = sin(2 j + 1)."""
    return np.cos(np.arange(rows) + 1.0), np.sin(2.0 * np.arange(columns) + 1.0)
