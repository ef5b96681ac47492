"""What trainers are told of an adapter's engines."""

from __future__ import annotations

from typing import Any

import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.push.progress import status_of
from operator_builders import DIGEST, engine, loaded, staged

PUSHED = "sha256:" + "0" * 64
BODY = {
    "metadata": {"namespace": "team-a", "name": "sql", "generation": 3},
    "spec": {"source": {"push": {"revision": PUSHED, "step": 7}}},
}


CASES: dict[str, tuple[dict[str, Any], tuple[str, int, str] | None]] = {
    "an engine with the plugin answers to the digest": ({}, (PUSHED, 7, DIGEST)),
    "one without it to the served name alone": (
        {"health": pb.ENGINE_HEALTH_STOCK},
        (PUSHED, 7, ""),
    ),
    "one that is starting answers nobody": ({"health": pb.ENGINE_HEALTH_STARTING}, None),
}


@pytest.mark.parametrize("sentence", CASES)
def test_of_an_engine_trainers_hear(sentence: str) -> None:
    changes, expected = CASES[sentence]
    view = engine("engine-0", loaded(published=True), staged(fingerprint=PUSHED), **changes)
    told = [(each.revision, each.step, each.digest) for each in status_of(BODY, [view]).engines]
    assert told == ([expected] if expected else [])
