"""Random factors of experts, and the layouts in which trainers write them; numpy, no torch.

Values are multiples of 1/64 below 4: exact in bfloat16, so that every layout holds the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Array = np.ndarray[Any, Any]
Factors = dict[str, dict[int, tuple[Array, Array]]]
"""Projection -> expert -> (A [rank, in], B [out, rank])."""

EXPERTS, HIDDEN, INNER = 8, 64, 32
GATE_UP = ("gate_proj", "up_proj")
SIZES = {"gate_proj": (HIDDEN, INNER), "up_proj": (HIDDEN, INNER), "down_proj": (INNER, HIDDEN)}
W_NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def exact(*shape: int, seed: int) -> Array:
    """Return random values that no dtype of an engine rounds."""
    return np.random.default_rng(seed).integers(-255, 256, shape) / 64.0


def factors(
    rank: int | Callable[[int, str], int] = 2,
    names: Iterable[str] = SIZES,
    experts: Iterable[int] = range(EXPERTS),
    seed: int = 0,
    *,
    one_a: bool = True,
) -> Factors:
    """Return random factors; with `one_a` gate and up of an expert share theirs, as in fused ones."""
    found: Factors = {}
    for number, name in enumerate(names):
        wide, out = SIZES[name]
        found[name] = {}
        for expert in experts:
            own = rank if isinstance(rank, int) else rank(expert, name)
            key = 1000 * seed + 10 * expert + (0 if one_a and name in GATE_UP else number + 1)
            found[name][expert] = (
                exact(own, wide, seed=key),
                exact(out, own, seed=100_000 + 1000 * seed + 10 * expert + number),
            )
    return found


def updates(
    module: str, parts: Factors, scaling: float | Callable[[int, str], float]
) -> dict[str, tuple[Array, Array, float]]:
    """Return (A, B, scaling) under the name of each expert's projection of the module `module`."""
    return {
        f"{module}.{expert}.{name}": (
            a,
            b,
            scaling if isinstance(scaling, int | float) else scaling(expert, name),
        )
        for name, every in parts.items()
        for expert, (a, b) in every.items()
    }


def fused(parts: Factors) -> Factors:
    """Return gate and up as one projection: their common A, the rows of gate's B before up's."""
    gate, up = (parts[name] for name in GATE_UP)
    assert all(np.array_equal(gate[expert][0], up[expert][0]) for expert in gate)
    joined = {e: (a, np.concatenate([b, up[e][1]])) for e, (a, b) in gate.items()}
    rest = {name: every for name, every in parts.items() if name not in GATE_UP}
    return {"gate_up_proj": joined, **rest}


def keyed(module: str, a: Array, b: Array) -> dict[str, Array]:
    """Return one pair under PEFT's names."""
    head = f"base_model.model.{module}"
    return {f"{head}.lora_A.weight": a, f"{head}.lora_B.weight": b}


def one_by_one(
    module: str, parts: Factors, names: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return a pair for each expert's projection, under other names for them if given."""
    found: dict[str, Array] = {}
    for name, every in parts.items():
        for expert, (a, b) in every.items():
            found |= keyed(f"{module}.{expert}.{(names or {}).get(name, name)}", a, b)
    return found


def flat(every: dict[int, tuple[Array, Array]], *, transposed: bool = False) -> tuple[Array, Array]:
    """Return PEFT's pair of one parameter: A [experts*rank, in], B [out, rank*experts]."""
    pairs = [(b.T, a.T) if transposed else (a, b) for a, b in every.values()]
    a, b = np.concatenate([a for a, _ in pairs]), np.stack([b for _, b in pairs], axis=-1)
    return a, b.reshape(len(b), -1)


def stacked(module: str, parts: Factors, *, turned: bool = False) -> dict[str, Array]:
    """Return A [experts, rank, in] and B [experts, out, rank] of each projection."""
    found: dict[str, Array] = {}
    for name, every in parts.items():
        a, b = (np.stack(side) for side in zip(*every.values(), strict=True))
        if turned:
            a, b = a.transpose(0, 2, 1), b.transpose(0, 2, 1)
        found |= keyed(f"{module}.{name}", a, b)
    return found
