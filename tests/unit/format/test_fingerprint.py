"""The fingerprint is what its definition says, for every bit, place and part."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet import fingerprint as defined
from lorafleet_sidecar.fingerprints import tensor_fingerprint

KINDS: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}


def by_definition(values: Any) -> int:
    """Return the fingerprint of [rows, cols], in Python's integers."""
    words = np.ascontiguousarray(values).view(np.int16).tolist()
    return (
        sum(
            defined.row_weight(row) * sum(defined.column_weight(c) * v for c, v in enumerate(line))
            for row, line in enumerate(words)
        )
        % defined.MODULUS
    )


def random(kind: str, shape: tuple[int, ...], seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 70), (70, 3), (2, 200_000), (4, 5, 6)])
def test_numpy_computes_what_is_defined(kind: str, shape: tuple[int, ...]) -> None:
    values = random(kind, shape)
    found = tensor_fingerprint(values.tobytes(), shape, kind)
    assert found == by_definition(values.reshape(-1, shape[-1]))


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, (1 << 20) + 70_000), (70_000, 1), (3, 70_000, 1), (3, 5, 70_000)]
)
def test_long_rows_and_many_rows_are_read_in_parts(kind: str, shape: tuple[int, ...]) -> None:
    values = np.zeros(prod(shape), KINDS[kind])
    values[[0, 5, 65_535, 65_536, -1]] = [1, 2, 3, 4, 5]
    scaling = (2.0, 3.0, 5.0) if len(shape) == 3 else 1.0
    scales = np.repeat(np.asarray(scaling).reshape(-1), values.size // np.size(scaling))
    scaled = (values.astype(np.float32) * scales).astype(KINDS[kind]).reshape(-1, shape[-1])
    words = scaled.view(np.int16)
    wanted = sum(
        defined.row_weight(int(row)) * defined.column_weight(int(word)) * int(words[row, word])
        for row, word in np.argwhere(words)
    )
    found = tensor_fingerprint(values.tobytes(), shape, kind, scaling)
    assert found == wanted % defined.MODULUS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", [2.5, 1 / 3, (0.3, 1.0, 7.7, 2.0)])
def test_the_scaling_is_multiplied_in_float32_and_rounded_once(kind: str, scaling: Any) -> None:
    values = random(kind, (4, 5, 6))
    factors = np.broadcast_to(np.float32(scaling), 4).reshape(4, 1, 1)
    scaled = (values.astype(np.float32) * factors).astype(KINDS[kind])
    found = tensor_fingerprint(values.tobytes(), (4, 5, 6), kind, scaling)
    assert found == by_definition(scaled.reshape(-1, 6))
    assert found != by_definition(values.reshape(-1, 6))


def test_no_two_columns_weigh_the_same() -> None:
    weights = [defined.column_weight(word) for word in range(1 << 18)]
    assert len(set(weights)) == len(weights)
    assert min(weights) >= 0
    assert max(weights) < 1 << defined.COLUMN_BITS
    assert (1 << 15) * (1 << defined.COLUMN_BITS) * defined.EXACT_WORDS < 1 << 53


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_any_two_values_that_change_places_change_it(i: int, j: int, k: int, m: int) -> None:
    values = np.arange(100, dtype=np.float16).reshape(10, 10)
    changed = values.copy()
    changed[i, j], changed[k, m] = values[k, m], values[i, j]
    same = (i, j) == (k, m)
    found = [tensor_fingerprint(each.tobytes(), (10, 10), "float16") for each in (values, changed)]
    assert (found[0] == found[1]) == same


def test_zeros_add_nothing_and_a_negative_zero_does() -> None:
    values = random("bfloat16", (4, 6))
    padded = np.zeros((8, 6), ml_dtypes.bfloat16)
    padded[:4] = values
    whole = tensor_fingerprint(values.tobytes(), (4, 6), "bfloat16")
    assert tensor_fingerprint(padded.tobytes(), (8, 6), "bfloat16") == whole
    padded[5, 2] = -0.0
    assert tensor_fingerprint(padded.tobytes(), (8, 6), "bfloat16") != whole
