"""Numbers and percentages of engines, as a Deployment counts them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from lorafleet_operator.api.v1alpha1 import Canary, Rollout


@pytest.mark.parametrize(
    ("written", "engines", "limits"),
    [
        ({}, 7, (0, 7)),
        ({"maxSurge": 1}, 7, (0, 1)),
        ({"maxUnavailable": "25%", "maxSurge": "25%"}, 7, (1, 2)),
        ({"maxUnavailable": "25%", "maxSurge": 0}, 3, (1, 0)),  # 0 and 0 after rounding
        ({"maxUnavailable": 5, "maxSurge": 0}, 3, (3, 0)),
        ({"maxUnavailable": "100%", "maxSurge": "100%"}, 4, (4, 4)),
        ({}, 0, (1, 0)),
    ],
)
def test_limits_of_an_update(
    written: dict[str, Any], engines: int, limits: tuple[int, int]
) -> None:
    assert Rollout.model_validate(written).limits(engines) == limits


@pytest.mark.parametrize(
    ("written", "engines", "tried"),
    [
        ({}, 5, 1),
        ({"engines": 2}, 5, 2),
        ({"engines": 9}, 5, 5),
        ({"engines": "10%"}, 5, 1),
        ({"engines": "50%"}, 5, 3),
        ({"trafficPercent": 50}, 5, 3),
        ({"trafficPercent": 1}, 5, 1),
        ({"trafficPercent": 50, "engines": 1}, 5, 1),
        ({"engines": 1}, 0, 0),
    ],
)
def test_engines_of_a_canary(written: dict[str, Any], engines: int, tried: int) -> None:
    assert Canary.model_validate(written).engines_of(engines) == tried


@pytest.mark.parametrize(
    ("written", "rate"), [("5%", "0.05"), ("0.5%", "0.005"), (5, "0.05"), ("100%", "1"), (0, "0")]
)
def test_an_error_rate_is_exact(written: int | str, rate: str) -> None:
    assert Canary(max_error_rate=written).error_rate == Decimal(rate)
