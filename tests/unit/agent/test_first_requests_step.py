"""What a sidecar does next for a name that requests wait for."""

from __future__ import annotations

import pytest
from lorafleet_sidecar.desired import ServedName, Target
from lorafleet_sidecar.first_requests import Refusal, Step, next_step

ONE = Target("sha256:1", "direct")
ASLEEP = ServedName("n", "a", ONE, residency="onDemand")
SHARED = ServedName("n", "a", ONE)
GOING = ServedName("n", "a", ONE, residency="onDemand", removing=True)
UNKNOWN, FAILED = Refusal(404, "does not exist"), Refusal(503, "no luck", known=True)

TABLE = {
    "what sleeps is loaded": (ASLEEP, None, False, Step.LOAD),
    "without an operator too": (ASLEEP, None, False, Step.LOAD),
    "what is loaded and not served yet will be": (ASLEEP, None, True, Step.WAIT),
    "so will what a restart of the engine lost": (SHARED, None, False, Step.WAIT),
    "what is going is asked for when it is gone": (GOING, None, False, Step.WAIT),
    "what nobody here knows the operator may": (None, None, False, Step.ASK),
    "it is not asked again at once": (None, UNKNOWN, False, UNKNOWN),
    "a load that failed is not tried again at once": (ASLEEP, FAILED, False, FAILED),
    "a name that came after its refusal is loaded": (ASLEEP, UNKNOWN, False, Step.LOAD),
    "a name that went after a failed load is asked for": (None, FAILED, False, Step.ASK),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_the_next_step(sentence: str) -> None:
    name, refusal, loaded, expected = TABLE[sentence]
    operator = "without an operator" not in sentence
    assert next_step("n", name, refusal, loaded=loaded, operator=operator) == expected


def test_without_an_operator_a_name_that_nobody_knows_is_not_found() -> None:
    found = next_step("n", None, None, loaded=False, operator=False)
    assert isinstance(found, Refusal)
    assert (found.status, "no operator is connected" in found.line) == (404, True)
