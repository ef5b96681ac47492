"""When an adapter is looked at again that nothing wakes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from lorafleet_operator.passes import adapter_interval
from lorafleet_operator.settings import OperatorSettings

FLEET: Any = SimpleNamespace(settings=OperatorSettings(resync_seconds=60.0))
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def interval(status: dict[str, Any], **spec: Any) -> float:
    return adapter_interval({"spec": spec, "status": status}, FLEET)


def test_one_that_is_served_as_wanted_waits_for_its_turn_among_all() -> None:
    assert interval(READY) == math.inf
    assert interval(READY, source={"pollIntervalSeconds": 3600}) == 3600
    assert interval(READY, placement={"idleSeconds": 300}) == 300


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"conditions": [{"type": "Loaded", "status": "True"}]},
        READY | {"draining": [{"podName": "engine-0"}]},
        READY | {"rollout": {"waves": 2}},
        READY | {"decided": {"fingerprint": "f"}},
    ],
    ids=["unknown", "not ready", "not said", "drains", "waves", "decided"],
)
def test_one_that_waits_for_anything_is_looked_at_each_minute(status: dict[str, Any]) -> None:
    assert interval(status) == 60


def test_a_trial_is_looked_at_twenty_times() -> None:
    trial = {"canary": {"holdSeconds": 40}}
    assert interval(READY | {"canary": {"since": "now"}}, rollout=trial) == 2
